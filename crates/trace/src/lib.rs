//! Traces of jobs (`resurgo run --trace`): what ranks and the dispatcher have noted becomes spans on tracks, and these a
//! file in the format of Perfetto, which ui.perfetto.dev opens.

pub mod book;
pub mod course;
mod perfetto;
pub mod reader;
pub mod report;
mod ring;
mod span;
pub mod times;

pub use span::{Fact, Span, Track};
