//! Traces of jobs (`resurgo run --trace`): what ranks and the dispatcher have noted becomes spans on tracks, and these a
//! file in the format of Perfetto, which ui.perfetto.dev opens.

pub mod book;
mod perfetto;
pub mod reader;
pub mod report;
mod ring;
mod span;
mod times;

pub use span::{Fact, Span, Track};
