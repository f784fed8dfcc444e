//! Bodies of answers: one that grows token by token, as server-sent events, and one that is whole. Both say when their last byte has
//! been handed to the connection.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use super::generate::{Running, Writer};
use crate::error::ApiError;
use crate::reply::{Delta, Finish, Step, Usage};

const DONE: &str = "data: [DONE]\n\n";
/// A frame that has grown to this many bytes is not added to.
const FRAME_BYTES: usize = 64 << 10;

/// The body. It is asked for a frame when the connection has room for one; dropped early, it cancels its jobs.
#[derive(Debug)]
pub(super) struct StreamBody {
    running: Running,
    ready: String,
    ended: bool,
    failed: bool,
}

/// The body of a whole answer.
#[derive(Debug)]
pub(super) struct WholeBody {
    running: Running,
    json: Option<Bytes>,
}

impl StreamBody {
    /// A body whose first event was taken already.
    pub(super) fn new(running: Running, index: usize, first: Option<Step>) -> Result<Self, ApiError> {
        let mut body = Self { running, ready: String::new(), ended: false, failed: false };
        body.write(index, first)?;
        Ok(body)
    }

    fn write(&mut self, index: usize, step: Option<Step>) -> Result<(), ApiError> {
        match step {
            None => {}
            Some(Step::More(delta)) if delta.is_empty() => {}
            Some(Step::More(delta)) => self.chunk(index, delta, None)?,
            Some(Step::Done(delta, finish)) => self.chunk(index, delta, Some(finish))?,
        }
        if self.running.is_done() && !self.ended {
            if self.running.include_usage {
                let usage = Usage::of(&self.running.choices);
                let json = match &self.running.writer {
                    Writer::Completion(completions) => completions.usage(usage),
                    Writer::Chat(chats) => chats.usage(usage),
                };
                self.event(&json);
            }
            self.ready.push_str(DONE);
            self.ended = true;
        }
        Ok(())
    }

    fn chunk(&mut self, index: usize, delta: Delta, finish: Option<Finish>) -> Result<(), ApiError> {
        let tokenizer = &self.running.model.tokenizer;
        let json = match &mut self.running.writer {
            Writer::Completion(completions) => completions.chunk(index, delta, finish, tokenizer),
            Writer::Chat(chats) => chats.chunk(index, delta, finish, tokenizer)?,
        };
        self.event(&json);
        Ok(())
    }

    fn event(&mut self, json: &str) {
        self.ready.push_str("data: ");
        self.ready.push_str(json);
        self.ready.push_str("\n\n");
    }

    /// An error ends the stream without `[DONE]`, so that nobody takes it for whole.
    fn fail(&mut self, error: &ApiError) {
        let json = serde_json::to_string(&error.body()).unwrap_or_default();
        self.event(&json);
        self.ended = true;
        self.failed = true;
    }
}

impl Drop for StreamBody {
    fn drop(&mut self) {
        if self.ended && !self.failed && self.ready.is_empty() {
            self.running.handed_over();
        }
    }
}

impl WholeBody {
    /// The answer's JSON.
    pub(super) fn new(running: Running, json: String) -> Self {
        Self { running, json: Some(json.into()) }
    }
}

impl Drop for WholeBody {
    fn drop(&mut self) {
        if self.json.is_none() {
            self.running.handed_over();
        }
    }
}

impl HttpBody for WholeBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.json.take().map(|json| Ok(Frame::data(json))))
    }

    fn is_end_stream(&self) -> bool {
        self.json.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.json.as_ref().map_or(0, |json| json.len() as u64))
    }
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // All that is there goes into one frame, and so into one system call.
        while self.ready.len() < FRAME_BYTES && !self.ended {
            match self.running.poll_event(context) {
                Poll::Pending if self.ready.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(None) => self.fail(&ApiError::shutting_down()),
                Poll::Ready(Some((index, event))) => {
                    let written = self.running.take(index, event).and_then(|step| self.write(index, step));
                    if let Err(error) = written {
                        self.fail(&error);
                    }
                }
            }
        }
        if self.ready.is_empty() {
            return Poll::Ready(None);
        }
        let ready = Bytes::from(std::mem::take(&mut self.ready));
        Poll::Ready(Some(Ok(Frame::data(ready))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.ready.is_empty()
    }
}
