//! A page of a cloud's metadata service, which says that the machine is about to be taken away: plain HTTP at an address of the machine.
//!
//! - AWS (EC2): there is no such page (404) before the notice. Version 2 of the service answers 401
//!   to a client without a token, and gives one.
//! - Google Cloud: the page `instance/preempted` says `FALSE` or `TRUE`, and `instance/maintenance-event` says `NONE`.
//! - Azure: the page of scheduled events is JSON. An event of type `Preempt` or `Terminate` is the notice.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde_json::Value;

/// How long the service may take for each step.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest answer that is read, in bytes.
const LONGEST: u64 = 64 << 10;
/// Where AWS gives tokens, and for how many seconds.
const TOKENS: &str = "/latest/api/token";
const TOKEN_SECONDS: u32 = 60;

/// The address of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The name of the service, with the port if it is given.
    host: String,
    path: String,
}

impl Page {
    /// # Errors
    /// Why the URL names no such page, for people.
    pub fn at(url: &str) -> Result<Page, String> {
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(("https", _)) => return Err("metadata services speak plain http; write http://…".to_string()),
            _ => return Err("write http://HOST/PATH".to_string()),
        };
        let end = rest.find('/').unwrap_or(rest.len());
        let (host, path) = rest.split_at(end);
        let is_plain = |byte: u8| byte.is_ascii_graphic();
        if host.is_empty() || !host.bytes().chain(path.bytes()).all(is_plain) || host.contains('@') {
            return Err("write http://HOST/PATH".to_string());
        }
        Ok(Page {
            host: host.to_string(),
            path: if path.is_empty() { "/" } else { path }.to_string(),
        })
    }

    /// Whether the machine is about to be taken away.
    ///
    /// # Errors
    /// The service does not answer, or answers something else.
    pub fn says_so(&self) -> io::Result<bool> {
        let mut answer = self.ask("GET", &self.path, "")?;
        if answer.status == 401 {
            let wanted = format!("X-aws-ec2-metadata-token-ttl-seconds: {TOKEN_SECONDS}\r\nContent-Length: 0\r\n");
            let token = self.ask("PUT", TOKENS, &wanted)?;
            let token = token.body.trim();
            let is_token = token.bytes().all(|byte| byte.is_ascii_graphic());
            if is_token {
                answer = self.ask("GET", &self.path, &format!("X-aws-ec2-metadata-token: {token}\r\n"))?;
            }
        }
        match answer.status {
            200 => Ok(is_notice(&answer.body)),
            404 => Ok(false),
            status => Err(io::Error::other(format!("it answers with status {status}"))),
        }
    }

    fn ask(&self, method: &str, path: &str, more: &str) -> io::Result<Answer> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let host = &self.host;
        // Each service wants a header of its own, and ignores those of others.
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nMetadata: true\r\nMetadata-Flavor: Google\r\n{more}\r\n"
        );
        stream.write_all(request.as_bytes())?;
        let mut bytes = Vec::new();
        stream.take(LONGEST).read_to_end(&mut bytes)?;
        Answer::read(&String::from_utf8_lossy(&bytes)).ok_or_else(|| io::Error::other("its answer is no HTTP"))
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let after_name = self.host.rsplit(']').next().unwrap_or_default();
        let named = match after_name.contains(':') {
            true => self.host.clone(),
            false => format!("{}:80", self.host),
        };
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for address in named.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }
}

/// The answer of a service.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    fn read(text: &str) -> Option<Answer> {
        let (head, body) = text.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n");
        let mut first = lines.next()?.split(' ');
        let is_http = first.next()?.starts_with("HTTP/1.");
        let status = first.next()?.parse().ok().filter(|_| is_http)?;
        let is_chunked = lines.any(|line| line.to_ascii_lowercase().replace(' ', "") == "transfer-encoding:chunked");
        let body = match is_chunked {
            true => join_chunks(body)?,
            false => body.to_string(),
        };
        Some(Answer { status, body })
    }
}

/// Chunks of text, each behind its length.
fn join_chunks(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (length, after) = rest.split_once("\r\n")?;
        let length = usize::from_str_radix(length.split(';').next()?.trim(), 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.push_str(after.get(..length)?);
        rest = after.get(length..)?.strip_prefix("\r\n")?;
    }
}

fn is_notice(body: &str) -> bool {
    let body = body.trim();
    match serde_json::from_str::<Value>(body) {
        Ok(page) if page.get("Events").is_some() => {
            let mut events = page["Events"].as_array().into_iter().flatten();
            events.any(|event| {
                ["Preempt", "Terminate"]
                    .map(Some)
                    .contains(&event["EventType"].as_str())
            })
        }
        _ => !["", "FALSE", "NONE"].contains(&body.to_ascii_uppercase().as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_where_its_url_says() {
        let page = |url: &str| Page::at(url).map(|page| (page.host, page.path));
        let found = |host: &str, path: &str| Ok((host.to_string(), path.to_string()));
        assert_eq!(
            page("http://169.254.169.254/a/b?c=d"),
            found("169.254.169.254", "/a/b?c=d")
        );
        assert_eq!(page("HTTP://[::1]:80"), found("[::1]:80", "/"));
        for wrong in [
            "https://a/b",
            "a/b",
            "http:///b",
            "http://a b/",
            "http://me@a/",
            "http://a/\r\nX: y",
        ] {
            assert!(page(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let read = |text: &str| Answer::read(text).map(|answer| (answer.status, answer.body));
        assert_eq!(
            read("HTTP/1.1 200 OK\r\nA: b\r\n\r\nTRUE"),
            Some((200, "TRUE".to_string()))
        );
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nTR\r\n2;x\r\nUE\r\n0\r\n\r\n";
        assert_eq!(read(chunked), Some((200, "TRUE".to_string())));
        assert_eq!(read(&chunked[..chunked.len() - 10]), None);
        for wrong in ["", "200 OK\r\n\r\n", "HTTP/1.1 OK\r\n\r\n", "SSH-2.0-x\r\n"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_clouds_say_is_understood() {
        let aws = r#"{"action": "terminate", "time": "2026-11-26T08:22:00Z"}"#;
        let azure = |kind: &str| format!(r#"{{"DocumentIncarnation":1,"Events":[{{"EventType":"{kind}"}}]}}"#);
        for yes in [aws, "TRUE\n", &azure("Preempt"), &azure("Terminate")] {
            assert!(is_notice(yes), "{yes}");
        }
        for no in [
            "FALSE",
            "NONE\n",
            "",
            r#"{"DocumentIncarnation":1,"Events":[]}"#,
            &azure("Reboot"),
        ] {
            assert!(!is_notice(no), "{no}");
        }
    }
}
