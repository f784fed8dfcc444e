//! An OpenAI-compatible server over HTTP, and what it says of its tokens.

use super::endpoint::{Endpoint, EndpointError, Exchange};
use anyhow::{Context, ensure};
use assay_engine::file;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// The longest response that is read, in bytes.
const MAX_RESPONSE_BYTES: u64 = 64 << 20;
/// The largest file of certificates, in bytes.
const MAX_CERTIFICATES_BYTES: u64 = 4 << 20;
/// For requests that compute nothing.
const QUICK_SECONDS: f64 = 60.0;
/// Where a key is found, so that it stands on no command line and in no record.
const KEY_VARIABLE: &str = "ASSAY_API_KEY";

/// A server.
#[derive(Debug, Clone)]
pub struct HttpEndpoint {
    agent: ureq::Agent,
    base: String,
    key: Option<String>,
}

impl HttpEndpoint {
    /// `url` with or without `/v1` at its end. A key is taken from `ASSAY_API_KEY`.
    pub fn new(url: &str) -> Self {
        Self::with_tls(url, TlsConfig::default())
    }

    /// The same, for `https`: trusts the certificates in the file `authorities` (PEM) alone, where there is one, and otherwise those
    /// that Mozilla trusts.
    ///
    /// # Errors
    /// When the address is none of HTTP; when the file cannot be read, or holds no certificate.
    pub fn trusting(url: &str, authorities: Option<&Path>) -> anyhow::Result<Self> {
        let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        ensure!(
            host.is_some_and(|host| !host.is_empty() && !host.starts_with('/')),
            "an endpoint is http://HOST or https://HOST, found {url:?}"
        );
        let Some(path) = authorities else { return Ok(Self::new(url)) };
        ensure!(url.starts_with("https://"), "certificates are for an endpoint that begins with https://, found {url}");
        let pem = file::read(path, MAX_CERTIFICATES_BYTES)?;
        let mut certificates = Vec::new();
        for item in parse_pem(&pem) {
            if let PemItem::Certificate(certificate) = item.with_context(|| format!("reading {}", path.display()))? {
                certificates.push(certificate);
            }
        }
        ensure!(!certificates.is_empty(), "{} holds no certificate, expected some in PEM", path.display());
        let trusted = RootCerts::Specific(Arc::new(certificates));
        Ok(Self::with_tls(url, TlsConfig::builder().root_certs(trusted).build()))
    }

    fn with_tls(url: &str, tls: TlsConfig) -> Self {
        // Whoever answers is whom the evidence names: nobody is redirected.
        let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).tls_config(tls).build();
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Self { agent: config.into(), base, key: std::env::var(KEY_VARIABLE).ok() }
    }

    /// The server's address.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Sends a body as it is.
    ///
    /// # Errors
    /// When no answer comes. A status other than 200 is an answer.
    pub fn post(&self, path: &str, body: &str, seconds: f64) -> Result<Exchange, EndpointError> {
        let timeout = Duration::from_secs_f64(seconds.clamp(0.001, 1e6));
        let mut request = self
            .agent
            .post(format!("{}{path}", self.base))
            .config()
            .timeout_global(Some(timeout))
            .build()
            .content_type("application/json");
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let response = request.send(body).map_err(failed)?;
        let status = response.status().as_u16();
        let mut content = response.into_body();
        let read = content.with_config().limit(MAX_RESPONSE_BYTES).lossy_utf8(true).read_to_string();
        Ok(Exchange { request: body.to_owned(), response: read.map_err(failed)?, status })
    }

    /// What a path says, of something that computes nothing.
    ///
    /// # Errors
    /// When no answer comes, or another status than 200.
    pub fn get(&self, path: &str) -> Result<String, String> {
        let request = self.agent.get(format!("{}{path}", self.base));
        let timeout = Some(Duration::from_secs_f64(QUICK_SECONDS));
        let response = request.config().timeout_global(timeout).build().call().map_err(|error| error.to_string())?;
        if response.status() != 200 {
            return Err(format!("{path}: status {}", response.status()));
        }
        let mut content = response.into_body();
        content.with_config().limit(MAX_RESPONSE_BYTES).read_to_string().map_err(|error| format!("{path}: {error}"))
    }

    /// Asks something that computes nothing, and reads the answer.
    fn ask(&self, path: &str, body: &Value) -> Result<Value, String> {
        let exchange = self.post(path, &body.to_string(), QUICK_SECONDS).map_err(|error| error.to_string())?;
        if exchange.status != 200 {
            let said: String = exchange.response.chars().take(200).collect();
            return Err(format!("{path}: status {}: {said}", exchange.status));
        }
        serde_json::from_str(&exchange.response).map_err(|error| format!("{path}: {error}"))
    }

    /// Tokens of a text, by the server's own tokenizer (`/tokenize`, as Assay and llama.cpp have it).
    ///
    /// # Errors
    /// What the server lacks, in words.
    pub fn tokens(&self, text: &str) -> Result<usize, String> {
        let answer = self.ask("/tokenize", &json!({"content": text, "add_special": false, "parse_special": true}));
        // A server that refuses fields that it does not know.
        let answer = answer.or_else(|_| self.ask("/tokenize", &json!({"content": text})))?;
        let tokens = answer.get("tokens").and_then(Value::as_array).ok_or("/tokenize: the answer has no tokens")?;
        Ok(tokens.len())
    }

    /// A chat as the model is shown it (`/apply-template`, as Assay and llama.cpp have it).
    ///
    /// # Errors
    /// What the server lacks, in words.
    pub fn rendered(&self, request: &Value) -> Result<String, String> {
        let body = json!({"messages": request["messages"], "tools": request["tools"]});
        let answer = self.ask("/apply-template", &body)?;
        let prompt = answer.get("prompt").and_then(Value::as_str).ok_or("/apply-template: the answer has no prompt")?;
        Ok(prompt.to_owned())
    }
}

fn failed(error: ureq::Error) -> EndpointError {
    match error {
        ureq::Error::Timeout(timeout) => EndpointError::TimedOut(timeout.to_string()),
        error => EndpointError::Unreachable(error.to_string()),
    }
}

impl Endpoint for HttpEndpoint {
    fn complete(&mut self, request: &Value, seconds: f64) -> Result<Exchange, EndpointError> {
        self.post("/v1/chat/completions", &request.to_string(), seconds)
    }
}
