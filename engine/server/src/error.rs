//! Errors in OpenAI's form.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// Why a request was refused or failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// For a person.
    pub message: String,
    /// OpenAI's class of error.
    pub kind: &'static str,
    /// The request's field that is at fault.
    pub param: Option<String>,
    /// For a program.
    pub code: Option<&'static str>,
}

/// The body of an error.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None }
    }

    /// The request as a whole is no request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A field is at fault.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::invalid(message) }
    }

    /// A field that would change the answer and that this server does not know.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(param, message) }
    }

    /// The prompt and its answer do not fit.
    pub fn context(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::field(param, message) }
    }

    /// No such path.
    pub fn no_route() -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", "no such endpoint")
    }

    /// A path with another method.
    pub fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "this endpoint has another method")
    }

    /// A model that is not served.
    pub fn model(asked: &str, served: &str) -> Self {
        Self {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..Self::new(
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                format!("model {asked:?} is not served here, expected {served:?}"),
            )
        }
    }

    /// No key, or a wrong one.
    pub fn key() -> Self {
        Self {
            code: Some("invalid_api_key"),
            ..Self::new(
                StatusCode::UNAUTHORIZED,
                "invalid_request_error",
                "expected the header `Authorization: Bearer` with a key of this server",
            )
        }
    }

    /// A body that is not JSON by its header.
    pub fn media_type() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "invalid_request_error",
            "expected the header `Content-Type: application/json`",
        )
    }

    /// A body past the limit.
    pub fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            format!("the body has more than the {limit} bytes that are allowed"),
        )
    }

    /// A body that did not arrive in time.
    pub fn timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "the body did not arrive in time")
    }

    /// The queue is full.
    pub fn busy(waiting: usize) -> Self {
        Self {
            code: Some("queue_full"),
            ..Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "rate_limit_error",
                format!("{waiting} requests are waiting, which is all that the queue holds: try again later"),
            )
        }
    }

    /// The server is going away.
    pub fn shutting_down() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the server is shutting down")
    }

    /// The engine failed.
    pub fn engine(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    pub(crate) fn body(&self) -> ErrorBody<'_> {
        let Self { message, kind, param, code, .. } = self;
        ErrorBody { error: ErrorFields { message, kind, param: param.as_deref(), code: *code } }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1")),
            StatusCode::UNAUTHORIZED => headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            _ => None,
        };
        response
    }
}
