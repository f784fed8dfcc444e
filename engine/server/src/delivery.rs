//! When an answer counts as delivered, and what becomes visible then.
//!
//! An answer is computed by one thread and written to the network by another; its state may be reused by later requests only once
//! both are done. An answer is delivered when the operating system has taken its last byte.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use assay_engine::session::Pending;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// One answer's delivery. Dropped by all who hold it before both halves are there, it leaves what is kept as it was.
#[derive(Debug, Default)]
pub struct Delivery(Mutex<State>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Neither,
    Delivered,
    Saved(Pending),
    Published,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Delivery {
    /// The answer is computed and its state copied.
    pub fn saved(&self, pending: Pending) {
        let mut state = lock(&self.0);
        *state = match std::mem::take(&mut *state) {
            State::Delivered => {
                pending.commit();
                State::Published
            }
            _ => State::Saved(pending),
        };
    }

    /// The client has it.
    pub fn delivered(&self) {
        let mut state = lock(&self.0);
        *state = match std::mem::take(&mut *state) {
            State::Saved(pending) => {
                pending.commit();
                State::Published
            }
            State::Published => State::Published,
            State::Neither | State::Delivered => State::Delivered,
        };
    }
}

/// Answers of one connection whose bytes are on their way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outbox(Arc<Mutex<Vec<Arc<Delivery>>>>);

impl Outbox {
    /// The last byte of these has been handed to the connection.
    pub(crate) fn put(&self, deliveries: &[Arc<Delivery>]) {
        lock(&self.0).extend(deliveries.iter().cloned());
    }

    /// Everything handed over so far has been written.
    fn flushed(&self) {
        let deliveries = std::mem::take(&mut *lock(&self.0));
        deliveries.iter().for_each(|delivery| delivery.delivered());
    }
}

/// A connection that tells its outbox when everything is written.
#[derive(Debug)]
pub(crate) struct Delivering<S> {
    inner: S,
    outbox: Outbox,
}

impl<S> Delivering<S> {
    pub(crate) fn new(inner: S, outbox: Outbox) -> Self {
        Self { inner, outbox }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Delivering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Delivering<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    /// The layer above flushes once its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.inner).poll_flush(context);
        if let Poll::Ready(Ok(())) = flushed {
            self.outbox.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.inner).poll_shutdown(context);
        if let Poll::Ready(Ok(())) = shut {
            self.outbox.flushed();
        }
        shut
    }
}
