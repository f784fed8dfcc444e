//! A client that speaks bare HTTP/1.1, so that it can also speak it badly.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(300);

/// A request, as bytes.
#[derive(Debug, Clone)]
pub struct Request {
    pub bytes: Vec<u8>,
}

/// An answer, its chunks joined.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Request {
    pub fn get(path: &str) -> Self {
        Self::new("GET", path, &[], "")
    }

    pub fn post(path: &str, body: &Value) -> Self {
        Self::new("POST", path, &[("Content-Type", "application/json")], &body.to_string())
    }

    pub fn new(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Self {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let text =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
        Self { bytes: text.into_bytes() }
    }

    /// Sends it on a connection of its own and reads the answer.
    pub fn send(&self, address: SocketAddr) -> io::Result<Answer> {
        let mut connection = Connection::open(address)?;
        connection.write(&self.bytes)?;
        connection.answer()
    }
}

/// A connection, which may carry several requests.
pub struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Status and headers.
    pub fn head(&mut self) -> io::Result<Answer> {
        let status = self.line()?;
        let status =
            status.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Answer { status, headers, body: String::new() })
    }

    /// The next chunk of a chunked body; empty at its end.
    pub fn chunk(&mut self) -> io::Result<String> {
        let length = usize::from_str_radix(&self.line()?, 16).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut chunk = vec![0; length];
        self.reader.read_exact(&mut chunk)?;
        self.line()?;
        String::from_utf8(chunk).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// A whole answer.
    pub fn answer(&mut self) -> io::Result<Answer> {
        let mut answer = self.head()?;
        self.body(&mut answer)?;
        Ok(answer)
    }

    /// The body behind a head.
    pub fn body(&mut self, answer: &mut Answer) -> io::Result<()> {
        match answer.header("content-length") {
            Some(length) => {
                let mut body = vec![0; length.parse().map_err(|_| io::ErrorKind::InvalidData)?];
                self.reader.read_exact(&mut body)?;
                answer.body = String::from_utf8(body).map_err(|_| io::ErrorKind::InvalidData)?;
            }
            None => loop {
                let chunk = self.chunk()?;
                if chunk.is_empty() {
                    break;
                }
                answer.body += &chunk;
            },
        }
        Ok(())
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The objects of server-sent events, and whether `[DONE]` came last.
    pub fn events(&self) -> (Vec<Value>, bool) {
        let mut data: Vec<&str> = self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        let done = data.last() == Some(&"[DONE]");
        data.truncate(data.len() - usize::from(done));
        (data.into_iter().map(|json| serde_json::from_str(json).unwrap()).collect(), done)
    }

    /// All text of a completion or a chat, whole or streamed.
    pub fn text(&self) -> String {
        let events = match self.header("content-type") {
            Some("text/event-stream") => self.events().0,
            _ => vec![self.json()],
        };
        let choices = events.iter().flat_map(|event| event["choices"].as_array().into_iter().flatten());
        let parts = choices.map(|choice| {
            let places = [&choice["text"], &choice["message"]["content"], &choice["delta"]["content"]];
            places.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
        });
        parts.collect()
    }
}
