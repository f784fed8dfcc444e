//! Routes, and what every request goes through.
//!
//! - `connection`: accepting, time and size limits of a connection, shutdown
//! - `body`: reading a body within its limits
//! - `generate`: from a checked request to jobs, and from their events to a response
//! - `stream`: a response that grows token by token
//! - `plain`: everything that needs no engine

mod body;
pub(crate) mod connection;
mod generate;
mod plain;
mod stream;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

pub use generate::{Endpoint, prompts};

use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::serve::ServerOptions;
use crate::worker::Queue;

/// What every handler has.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) options: Arc<ServerOptions>,
}

/// Whose request it is: the key's place in its file, never the key.
#[derive(Debug, Clone, Default)]
struct Tenant(String);

/// The path that needs no key: whether the server is there is no secret.
const HEALTH: &str = "/health";

/// Paths as metrics name them; anything else is a client's invention.
const ROUTES: [&str; 8] = [
    HEALTH,
    "/metrics",
    "/v1/models",
    "/v1/completions",
    "/v1/chat/completions",
    "/tokenize",
    "/detokenize",
    "/apply-template",
];

/// The server's routes.
pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route(HEALTH, get(plain::health))
        .route("/metrics", get(plain::metrics))
        .route("/v1/models", get(plain::models))
        .route("/v1/models/{model}", get(plain::model))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/chat/completions", post(generate::chat))
        .route("/tokenize", post(plain::tokenize))
        .route("/detokenize", post(plain::detokenize))
        .route("/apply-template", post(plain::apply_template))
        .fallback(async || ApiError::no_route())
        .method_not_allowed_fallback(async || ApiError::method())
        .layer(from_fn_with_state(app.clone(), guard))
        .with_state(app)
}

/// Checks the key, counts the answer.
async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let route = ROUTES.into_iter().find(|&route| route == path).unwrap_or("other");
    let tenant = match &app.options.keys {
        None => Some(Tenant::default()),
        Some(_) if route == HEALTH => Some(Tenant::default()),
        Some(keys) => {
            let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
            let key = header.and_then(|value| value.strip_prefix("Bearer "));
            key.and_then(|key| keys.place(key.trim())).map(|place| Tenant(format!("key {place}")))
        }
    };
    let response = match tenant {
        None => ApiError::key().into_response(),
        Some(tenant) => {
            request.extensions_mut().insert(tenant);
            next.run(request).await
        }
    };
    app.metrics.answered(route, response.status().as_u16());
    response
}

/// Runs work that takes a while beside the threads that serve connections.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::engine("the request could not be prepared")))
}
