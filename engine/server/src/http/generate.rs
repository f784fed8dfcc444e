//! From a checked request to jobs, and from their events to a response.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use assay_engine::sampling::Sampling;
use assay_engine::session::Scope;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::plain::template_error;
use super::stream::{StreamBody, WholeBody};
use super::{App, Tenant, blocking, body};
use crate::delivery::{Delivery, Outbox};
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::model::ServedModel;
use crate::reply::chat::{Chats, unique};
use crate::reply::completion::Completions;
use crate::reply::{Beginning, Choice, ChoiceOptions, Delta, Finish, Head, Step, Usage};
use crate::request::{ChatRequest, CompletionRequest, Generation, Prompt};
use crate::worker::{Cancel, Event, Events, Job, Refused, WAKE_INTERVAL};

/// How several templates begin an answer that thinks first.
const OPEN_THOUGHT: &str = "<think>";
/// Ends such a thought before it begins: an answer that has to begin with a call begins with it.
const EMPTY_THOUGHT_END: &str = "\n</think>\n\n";

/// In which of the two forms an answer is written.
#[derive(Debug)]
pub(super) enum Writer {
    Completion(Completions),
    Chat(Chats),
}

/// A request that is ready for the queue.
struct Prepared {
    model: Arc<ServedModel>,
    prompts: Vec<Vec<u32>>,
    choices: Vec<Choice>,
    cancels: Vec<Cancel>,
    writer: Writer,
    max_tokens: usize,
    sampling: Sampling,
    end_ids: Arc<[u32]>,
    logprobs: Option<usize>,
    prompt_logprobs: bool,
    reuse: bool,
    wake_interval: Duration,
    user: String,
    /// Fingerprint of the template that rendered the prompt; empty for none.
    template: String,
    stream: bool,
    include_usage: bool,
}

/// Whom a request is from and where its answer goes.
struct Client {
    tenant: Tenant,
    outbox: Outbox,
}

impl Client {
    fn of(request: &Request) -> Self {
        let extensions = request.extensions();
        Self {
            tenant: extensions.get().cloned().unwrap_or_default(),
            outbox: extensions.get().cloned().unwrap_or_default(),
        }
    }
}

/// A request whose jobs are in the queue.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) model: Arc<ServedModel>,
    events: UnboundedReceiver<Events>,
    /// Taken from the channel already.
    received: VecDeque<(usize, Event)>,
    pub(super) choices: Vec<Choice>,
    pub(super) writer: Writer,
    pub(super) include_usage: bool,
    cancels: Vec<Cancel>,
    deliveries: Vec<Arc<Delivery>>,
    outbox: Outbox,
    metrics: Arc<Metrics>,
}

impl Drop for Running {
    /// Whoever waited is gone, or has everything.
    fn drop(&mut self) {
        if !self.is_done() {
            self.metrics.cancelled();
            self.cancels.iter().for_each(Cancel::cancel);
        }
    }
}

impl Running {
    /// Whether every choice has ended.
    pub(super) fn is_done(&self) -> bool {
        self.choices.iter().all(Choice::is_done)
    }

    /// The last byte of the answer has been handed to the connection.
    pub(super) fn handed_over(&self) {
        self.outbox.put(&self.deliveries);
    }

    /// The next event, with the choice that it is of. `None` once the worker is gone.
    pub(super) fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Event)>> {
        loop {
            if let Some(event) = self.received.pop_front() {
                return Poll::Ready(Some(event));
            }
            match self.events.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Events { index, events })) => {
                    self.received.extend(events.into_iter().map(|event| (index, event)));
                }
            }
        }
    }

    async fn event(&mut self) -> Result<(usize, Event), ApiError> {
        poll_fn(|context| self.poll_event(context)).await.ok_or_else(ApiError::shutting_down)
    }

    /// Gives an event to its choice.
    pub(super) fn take(&mut self, index: usize, event: Event) -> Result<Option<Step>, ApiError> {
        self.choices.get_mut(index).map_or(Ok(None), |choice| choice.take(event))
    }
}

/// The two endpoints that generate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    Chat,
}

/// The prompts that a body asks for, checked, rendered and in tokens, as they would go into the queue; for whoever has no engine.
///
/// # Errors
/// What a client would be told.
pub fn prompts(model: Arc<ServedModel>, endpoint: Endpoint, body: &[u8]) -> Result<Vec<Vec<u32>>, ApiError> {
    let prepared = match endpoint {
        Endpoint::Completions => prepare_completion(model, body)?,
        Endpoint::Chat => prepare_chat(model, body)?,
    };
    Ok(prepared.prompts)
}

pub(super) async fn completions(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let body = body::json(&app, request).await?;
    let model = app.model.clone();
    let prepared = blocking(move || prepare_completion(model, &body)).await?;
    answer(&app, client, prepared).await
}

pub(super) async fn chat(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let body = body::json(&app, request).await?;
    let model = app.model.clone();
    let prepared = blocking(move || prepare_chat(model, &body)).await?;
    answer(&app, client, prepared).await
}

fn prepare_completion(model: Arc<ServedModel>, body: &[u8]) -> Result<Prepared, ApiError> {
    let request = CompletionRequest::parse(body, &model.id, random_seed()?)?;
    let logprobs = request.logprobs;
    let writer = Writer::Completion(Completions {
        head: head("cmpl-", &model)?,
        logprobs: logprobs.is_some(),
        offsets: vec![0; request.prompts.len()],
    });
    let mut prompts = Vec::with_capacity(request.prompts.len());
    let mut echoes = Vec::with_capacity(request.prompts.len());
    for prompt in request.prompts {
        let (tokens, text) = match prompt {
            Prompt::Text(text) => (encode(&model, &text, "prompt")?, text),
            Prompt::Tokens(tokens) => {
                check_ids(&model, &tokens)?;
                let text = if request.echo { decode(&model, &tokens)? } else { String::new() };
                (tokens, text)
            }
        };
        check_length(&model, tokens.len(), request.max_tokens, "prompt")?;
        prompts.push(tokens);
        echoes.push(request.echo.then_some(text));
    }
    let end_ids = model.end_ids.clone();
    let mut prepared = Prepared {
        end_ids: if request.generation.ignore_eos { Arc::from([]) } else { end_ids },
        max_tokens: request.max_tokens,
        logprobs,
        prompt_logprobs: request.echo && logprobs.is_some(),
        ..prepared(model, writer, &request.generation)
    };
    for (prompt, echo) in prompts.into_iter().zip(echoes) {
        prepared.add(prompt, Beginning::of_echo(echo), None, &request.generation.stop);
    }
    Ok(prepared)
}

fn prepare_chat(model: Arc<ServedModel>, body: &[u8]) -> Result<Prepared, ApiError> {
    let request = ChatRequest::parse(body, &model, random_seed()?)?;
    let template = model.template.as_ref().ok_or_else(ApiError::no_route)?;
    let mut text = template.render(&request.chat).map_err(template_error)?;
    let opening = request.opening().to_owned();
    if !opening.is_empty() && text.trim_end().ends_with(OPEN_THOUGHT) {
        text += EMPTY_THOUGHT_END;
    }
    let mut prompt = encode(&model, &text, "messages")?;
    // As if the model had written it, so that its tokens do not join the prompt's last one.
    prompt.extend(encode(&model, &opening, "tool_choice")?);
    let room = model.context_tokens.saturating_sub(prompt.len());
    let max_tokens = request.generation.max_tokens.unwrap_or(room).max(1);
    check_length(&model, prompt.len(), max_tokens, "messages")?;
    let writer = Writer::Chat(Chats {
        head: head("chatcmpl-", &model)?,
        logprobs: request.logprobs.is_some(),
        calls: 0,
        opened: false,
    });
    let end_ids = model.chat_end_ids.clone();
    let fingerprint = template.sha256().to_owned();
    let mut prepared = Prepared {
        end_ids: if request.generation.ignore_eos { Arc::from([]) } else { end_ids },
        max_tokens,
        logprobs: request.logprobs,
        template: fingerprint,
        ..prepared(model, writer, &request.generation)
    };
    prepared.add(prompt, Beginning::Opening(opening), request.parser(), &request.generation.stop);
    Ok(prepared)
}

/// What a request says without its prompts.
fn prepared(model: Arc<ServedModel>, writer: Writer, generation: &Generation) -> Prepared {
    Prepared {
        model,
        prompts: Vec::new(),
        choices: Vec::new(),
        cancels: Vec::new(),
        writer,
        max_tokens: 0,
        sampling: generation.sampling,
        end_ids: Arc::from([]),
        logprobs: None,
        prompt_logprobs: false,
        reuse: generation.cache_prompt,
        // Nobody sees a part of a whole answer, unless it has to be looked at for stop texts.
        wake_interval: match generation.stream || !generation.stop.is_empty() {
            true => WAKE_INTERVAL,
            false => Duration::MAX,
        },
        user: generation.user.clone(),
        template: String::new(),
        stream: generation.stream,
        include_usage: generation.include_usage,
    }
}

impl Prepared {
    fn add(&mut self, prompt: Vec<u32>, beginning: Beginning, parser: Option<crate::tools::Parser>, stops: &[String]) {
        let cancel = Cancel::default();
        self.choices.push(Choice::new(ChoiceOptions {
            tokenizer: self.model.tokenizer.clone(),
            stops: stops.to_vec(),
            parser,
            prompt: prompt.clone(),
            beginning,
            logprobs: self.logprobs.is_some(),
            cancel: cancel.clone(),
        }));
        self.prompts.push(prompt);
        self.cancels.push(cancel);
    }
}

/// Puts the jobs in the queue and answers.
async fn answer(app: &App, client: Client, prepared: Prepared) -> Result<Response, ApiError> {
    let (sender, events) = unbounded_channel();
    let queued = Instant::now();
    let scope = Scope { template: prepared.template, tenant: format!("{} {}", client.tenant.0, prepared.user) };
    let deliveries: Vec<Arc<Delivery>> = prepared.prompts.iter().map(|_| Arc::default()).collect();
    let jobs = prepared.prompts.into_iter().zip(&prepared.cancels).enumerate().map(|(index, (tokens, cancel))| Job {
        index,
        tokens,
        max_tokens: prepared.max_tokens,
        sampling: prepared.sampling,
        end_ids: prepared.end_ids.clone(),
        logprobs: prepared.logprobs,
        prompt_logprobs: prepared.prompt_logprobs,
        scope: scope.clone(),
        reuse: prepared.reuse,
        cancel: cancel.clone(),
        delivery: deliveries[index].clone(),
        events: sender.clone(),
        wake_interval: prepared.wake_interval,
        queued,
    });
    app.queue.push(jobs.collect()).map_err(|refused| match refused {
        Refused::Full { waiting } => ApiError::busy(waiting),
        Refused::Closed => ApiError::shutting_down(),
    })?;
    drop(sender);
    let mut running = Running {
        model: prepared.model,
        events,
        received: VecDeque::new(),
        choices: prepared.choices,
        writer: prepared.writer,
        include_usage: prepared.include_usage,
        cancels: prepared.cancels,
        deliveries,
        outbox: client.outbox,
        metrics: app.metrics.clone(),
    };
    if !prepared.stream {
        let json = whole(&mut running).await?;
        let headers = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        return Ok((headers, Body::new(WholeBody::new(running, json))).into_response());
    }
    // A prompt that fails is answered with a status, not within a stream.
    let (index, event) = running.event().await?;
    let first = running.take(index, event)?;
    let body = Body::new(StreamBody::new(running, index, first)?);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, body).into_response())
}

/// The answer's JSON, once all of it is there.
async fn whole(running: &mut Running) -> Result<String, ApiError> {
    let mut answers: Vec<(Delta, Option<Finish>)> = running.choices.iter().map(|_| (Delta::default(), None)).collect();
    while !running.is_done() {
        let (index, event) = running.event().await?;
        let Some(step) = running.take(index, event)? else { continue };
        let Some((answer, finish)) = answers.get_mut(index) else { continue };
        match step {
            Step::More(delta) => answer.join(delta),
            Step::Done(delta, reason) => {
                answer.join(delta);
                *finish = Some(reason);
            }
        }
    }
    let usage = Usage::of(&running.choices);
    let mut answers = answers.into_iter().map(|(delta, finish)| (delta, finish.unwrap_or(Finish::Stop)));
    let tokenizer = running.model.tokenizer.clone();
    match &mut running.writer {
        Writer::Completion(completions) => Ok(completions.whole(answers.collect(), usage, &tokenizer)),
        Writer::Chat(chats) => {
            let (delta, finish) = answers.next().unwrap_or((Delta::default(), Finish::Stop));
            chats.whole(delta, finish, usage, &tokenizer)
        }
    }
}

fn head(prefix: &str, model: &ServedModel) -> Result<Head, ApiError> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Head { id: unique(prefix)?, created, model: model.id.clone() })
}

/// For a request that gives no seed.
fn random_seed() -> Result<u64, ApiError> {
    getrandom::u64().map_err(|error| ApiError::engine(format!("no random numbers: {error}")))
}

fn encode(model: &ServedModel, text: &str, param: &str) -> Result<Vec<u32>, ApiError> {
    model.tokenizer.encode(text).map_err(|_| ApiError::field(param, "the tokenizer cannot encode this text"))
}

fn decode(model: &ServedModel, tokens: &[u32]) -> Result<String, ApiError> {
    let text = model.tokenizer.decode(tokens);
    text.map_err(|_| ApiError::field("prompt", "prompt: expected ids that the tokenizer has a text for"))
}

fn check_ids(model: &ServedModel, tokens: &[u32]) -> Result<(), ApiError> {
    match tokens.iter().find(|&&id| id as usize >= model.vocab_size) {
        None => Ok(()),
        Some(id) => {
            let message = format!("prompt: token id {id}, expected ids below {}", model.vocab_size);
            Err(ApiError::field("prompt", message))
        }
    }
}

fn check_length(model: &ServedModel, prompt: usize, answer: usize, param: &str) -> Result<(), ApiError> {
    if prompt == 0 {
        return Err(ApiError::field(param, format!("{param}: no token, expected at least one")));
    }
    let (context, longest) = (model.context_tokens, model.max_prompt_tokens);
    if prompt > longest {
        return Err(ApiError::context(param, format!("the prompt has {prompt} tokens, expected at most {longest}")));
    }
    // The last token of an answer is never fed back.
    if prompt + answer > context {
        let message = format!("{prompt} tokens of prompt and {answer} of answer exceed the context of {context}");
        return Err(ApiError::context(param, message));
    }
    Ok(())
}
