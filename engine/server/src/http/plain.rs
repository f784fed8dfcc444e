//! Routes that need no engine.

use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{App, blocking, body};
use crate::error::ApiError;
use crate::model::ServedModel;
use crate::request::{ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest};
use crate::template::TemplateError;

/// Prometheus' text form, OpenMetrics.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

pub(super) async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics.text(app.queue.waiting());
    ([(header::CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE))], text).into_response()
}

fn describe(model: &ServedModel) -> Value {
    json!({
        "id": model.id, "object": "model", "created": model.created, "owned_by": "assay",
        "max_model_len": model.context_tokens,
    })
}

pub(super) async fn models(State(app): State<App>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [describe(&app.model)] }))
}

pub(super) async fn model(State(app): State<App>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    if name == app.model.id { Ok(Json(describe(&app.model))) } else { Err(ApiError::model(&name, &app.model.id)) }
}

pub(super) async fn tokenize(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = body::json(&app, request).await?;
    blocking(move || {
        let TokenizeRequest { content, with_pieces } = TokenizeRequest::parse(&body)?;
        let tokenizer = &app.model.tokenizer;
        let failed = |_| ApiError::invalid("the tokenizer cannot encode this text");
        let tokens = tokenizer.encode(&content).map_err(failed)?;
        if !with_pieces {
            return Ok(Json(json!({ "tokens": tokens })));
        }
        let piece = |&id: &u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            // Bytes that are no text on their own are given as numbers.
            let piece = String::from_utf8(bytes).map_or_else(|error| json!(error.into_bytes()), Value::from);
            json!({ "id": id, "piece": piece })
        };
        Ok(Json(json!({ "tokens": tokens.iter().map(piece).collect::<Vec<_>>() })))
    })
    .await
}

pub(super) async fn detokenize(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = body::json(&app, request).await?;
    blocking(move || {
        let DetokenizeRequest { tokens } = DetokenizeRequest::parse(&body)?;
        let text = app.model.tokenizer.decode(&tokens);
        let text =
            text.map_err(|_| ApiError::field("tokens", "tokens: expected ids that this tokenizer has a text for"))?;
        Ok(Json(json!({ "content": text })))
    })
    .await
}

pub(super) async fn apply_template(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = body::json(&app, request).await?;
    blocking(move || {
        let request = ApplyTemplateRequest::parse(&body, &app.model)?;
        let template = app.model.template.as_ref().ok_or_else(ApiError::no_route)?;
        let prompt = template.render(&request.chat).map_err(template_error)?;
        Ok(Json(json!({ "prompt": prompt })))
    })
    .await
}

/// What a template says against messages is the request's fault.
pub(super) fn template_error(error: TemplateError) -> ApiError {
    ApiError::field("messages", error.to_string())
}
