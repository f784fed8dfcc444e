//! Reading a body within its limits.

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::header;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::App;
use crate::error::ApiError;

/// The body of a request that says it is JSON.
///
/// The header is asked for so that a web page of another origin cannot post here without the browser asking first.
pub(super) async fn json(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        return Err(ApiError::media_type());
    }
    let limits = &app.options.limits;
    let collected = Limited::new(request.into_body(), limits.body_bytes).collect();
    match tokio::time::timeout(limits.body_time, collected).await {
        Err(_) => Err(ApiError::timeout()),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(limits.body_bytes)),
        Ok(Err(_)) => Err(ApiError::invalid("the body broke off")),
    }
}
