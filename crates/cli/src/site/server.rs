//! The server: HTTP by axum, on one thread.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request as Asked, State as Of};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use futures_util::stream::{self, Stream};
use resurgo_wire::console::Request;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::watched::{News, Watched};

/// What pages have a moment to hear of after the job's end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The most bytes of an order.
const LONGEST: usize = 4096;

/// Nothing but what this server sends, in no frame of another page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A picture has its style within itself, and nothing else.
const OF_PICTURES: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
                           frame-ancestors 'none'";

#[derive(Clone)]
pub struct Site {
    pub watched: Arc<Watched>,
    /// Of the token, so that a comparison takes always the same time.
    pub token: blake3::Hash,
    /// Whether pages may give orders.
    pub control: bool,
}

/// Serves until the job has ended.
///
/// # Errors
/// It cannot serve at all.
pub fn serve(listener: TcpListener, site: Site) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let watched = site.watched.clone();
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let served = axum::serve(listener, router(site));
        let over = async {
            let mut news = watched.news();
            let _ = news.wait_for(|news| matches!(news, News::Over(_))).await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        // Pages that stay open hold nothing up.
        tokio::select! {
            served = served => served,
            () = over => Ok(()),
        }
    })
}

/// Serves a picture (SVG), and ends only with an error.
///
/// # Errors
/// It cannot serve.
pub fn serve_picture(listener: TcpListener, token: blake3::Hash, picture: String) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let picture = axum::body::Bytes::from(picture);
    let router = Router::new()
        .route(
            "/",
            get(move || async move { ([(header::CONTENT_TYPE, "image/svg+xml")], picture) }),
        )
        .route_layer(middleware::from_fn_with_state(token, has_token))
        .layer(middleware::from_fn_with_state(OF_PICTURES, careful));
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        axum::serve(listener, router).await
    })
}

fn router(site: Site) -> Router {
    let guarded = Router::new()
        .route("/events", get(events))
        .route("/do", post(order))
        .route_layer(middleware::from_fn_with_state(site.token, has_token));
    let text =
        |kind: &'static str, text: &'static str| get(move || async move { ([(header::CONTENT_TYPE, kind)], text) });
    Router::new()
        .route("/", text("text/html; charset=utf-8", include_str!("page.html")))
        .route(
            "/page.js",
            text("text/javascript; charset=utf-8", include_str!("page.js")),
        )
        .route("/page.css", text("text/css; charset=utf-8", include_str!("page.css")))
        .merge(guarded)
        .layer(middleware::from_fn_with_state(POLICY, careful))
        .layer(axum::extract::DefaultBodyLimit::max(LONGEST))
        .with_state(site)
}

/// What browsers are told with everything.
async fn careful(Of(policy): Of<&'static str>, asked: Asked, next: Next) -> Response {
    let mut response = next.run(asked).await;
    let headers = response.headers_mut();
    let mut set = |name, value: &'static str| headers.insert(name, header::HeaderValue::from_static(value));
    set(header::CONTENT_SECURITY_POLICY, policy);
    set(header::REFERRER_POLICY, "no-referrer");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::CACHE_CONTROL, "no-store");
    response
}

/// Lets nobody pass without the token: in the address, as a browser's events have no header of their own, or in
/// `Authorization: Bearer TOKEN`.
async fn has_token(Of(token): Of<blake3::Hash>, asked: Asked, next: Next) -> Response {
    let bearer = asked
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    let given = bearer
        .and_then(|value| value.strip_prefix("Bearer "))
        .or_else(|| in_address(asked.uri()));
    match given.is_some_and(|given| blake3::hash(given.as_bytes()) == token) {
        true => next.run(asked).await,
        false => refused(
            StatusCode::FORBIDDEN,
            "the address must have the token that resurgo web has printed",
        ),
    }
}

fn in_address(uri: &Uri) -> Option<&str> {
    let mut words = uri.query()?.split('&');
    words.find_map(|word| word.strip_prefix("token="))
}

fn refused(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "ok": false, "said": why }))).into_response()
}

/// What a page has heard.
struct Page {
    site: Site,
    news: watch::Receiver<News>,
    printed: watch::Receiver<u64>,
    /// The number of the last event that it has.
    last: u64,
    /// How much of the output it has.
    read: u64,
    is_over: bool,
}

impl Page {
    /// As the page says it when its connection broke.
    fn position(&self) -> String {
        format!("{}-{}", self.last, self.read)
    }

    fn output(&mut self) -> Option<Event> {
        let (told, end) = self.site.watched.output(self.read)?;
        self.read = end;
        Some(
            Event::default()
                .event("output")
                .id(self.position())
                .data(told.to_string()),
        )
    }
}

async fn events(Of(site): Of<Site>, headers: HeaderMap) -> impl IntoResponse {
    // A page whose connection broke says what it has.
    let last = headers.get("last-event-id").and_then(|last| {
        let (last, read) = last.to_str().ok()?.split_once('-')?;
        Some((last.parse().ok()?, read.parse().ok()?))
    });
    let (last, read) = last.unwrap_or_default();
    let (mut news, mut printed) = (site.watched.news(), site.watched.printed());
    // A new page hears of what is known already.
    news.mark_changed();
    printed.mark_changed();
    let page = Page {
        site,
        news,
        printed,
        last,
        read,
        is_over: false,
    };
    Sse::new(stream_of(page)).keep_alive(KeepAlive::default())
}

fn stream_of(page: Page) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(page, |mut page| async move {
        if page.is_over {
            return None;
        }
        loop {
            let is_news = tokio::select! {
                told = page.news.changed() => told.map(|()| true),
                told = page.printed.changed() => told.map(|()| false),
            };
            let is_news = is_news.ok()?;
            // Whatever the news are, the output comes first.
            if let Some(output) = page.output() {
                if is_news {
                    page.news.mark_changed();
                }
                return Some((Ok(output), page));
            }
            if !is_news {
                continue;
            }
            let news = page.news.borrow_and_update().clone();
            let event = match news {
                News::Nothing => continue,
                News::Silent => Event::default().event("silent").data("{}"),
                News::State => {
                    let Some((mut state, last)) = page.site.watched.state(page.last) else {
                        continue;
                    };
                    state["control"] = json!(page.site.control);
                    page.last = last;
                    Event::default()
                        .event("state")
                        .id(page.position())
                        .data(state.to_string())
                }
                News::Over(how) => {
                    page.is_over = true;
                    Event::default().event("over").data(json!({ "how": how }).to_string())
                }
            };
            return Some((Ok(event), page));
        }
    })
}

async fn order(Of(site): Of<Site>, Json(order): Json<Value>) -> Response {
    if !site.control {
        return refused(
            StatusCode::FORBIDDEN,
            "this page only looks: resurgo web --control lets it give orders",
        );
    }
    let request = match (order["do"].as_str(), order["node"].as_str(), order["rank"].as_u64()) {
        (Some("checkpoint"), ..) => Request::Checkpoint,
        (Some("drain"), Some(node), _) => Request::Drain {
            node: node.to_string(),
            removed: false,
        },
        (Some("kill"), _, Some(rank)) => Request::KillRank { rank: rank as usize },
        _ => {
            return refused(
                StatusCode::BAD_REQUEST,
                "not an order: checkpoint, drain with node, or kill with rank",
            );
        }
    };
    let watched = site.watched.clone();
    let done = tokio::task::spawn_blocking(move || watched.order(&request)).await;
    match done.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(said) => Json(json!({ "ok": true, "said": said })).into_response(),
        Err(why) => refused(StatusCode::CONFLICT, &why),
    }
}
