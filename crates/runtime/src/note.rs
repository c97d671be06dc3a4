//! The note in an image file: the data that another node needs to start the rank and the process itself does not have.
//! The agent writes it, and `resurgo image show` prints it. A process is rebuilt only from a file whose note names the
//! wanted image.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write};

use resurgo_pmi::Position;
use resurgo_protocol::Protocol;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::units::{counted, one_line};

/// The version of notes that this program writes. Notes of the first version have no number, no counts, and no readable
/// account.
pub const VERSION: u32 = 2;

/// The data of an image beside its process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    #[serde(default = "first")]
    pub version: u32,
    /// Name of the job, and of its protocol when the image was taken.
    pub job: String,
    #[serde(default)]
    pub protocol: String,
    pub rank: usize,
    /// Number of the image, counted by rank from 1.
    pub image: u64,
    #[serde(default, flatten)]
    pub counts: Counts,
    /// The rank's position in output, PMI and input, as the dispatcher's ledger writes it.
    #[serde(default)]
    pub account: Value,
}

/// The rank's position in its messages. A return to a wave under a protocol without logs begins to count anew.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Deliveries that the image covers (the rank's rclock).
    #[serde(default)]
    pub deliveries: u64,
    /// In ascending order of the peers; peers without messages are left out.
    #[serde(default)]
    pub channels: Vec<Channel>,
}

/// The channels to and from one other rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "[u64; 4]", from = "[u64; 4]")]
pub struct Channel {
    pub peer: usize,
    /// The last message sent to it (ssn), and the last delivered from it.
    pub sent: u64,
    pub delivered: u64,
    /// Serial of the segment of the peer's log that the rank reads. 0: its first, or there is no log.
    pub cursor: u64,
}

impl From<Channel> for [u64; 4] {
    fn from(channel: Channel) -> Self {
        [channel.peer as u64, channel.sent, channel.delivered, channel.cursor]
    }
}

impl From<[u64; 4]> for Channel {
    fn from([peer, sent, delivered, cursor]: [u64; 4]) -> Self {
        Channel {
            peer: peer as usize,
            sent,
            delivered,
            cursor,
        }
    }
}

/// Why a note is unusable.
#[derive(Debug, thiserror::Error)]
pub enum NoteError {
    #[error("its note cannot be read: {0}")]
    Unreadable(serde_json::Error),
    #[error("its note is of version {0}, and this resurgo knows {VERSION}; use the version that has written it")]
    Newer(u32),
    #[error("it is image {image} of rank {rank} of job {job}")]
    Other { job: String, rank: usize, image: u64 },
}

fn first() -> u32 {
    1
}

/// The part common to all versions.
#[derive(Deserialize)]
struct AnyVersion {
    #[serde(default = "first")]
    version: u32,
}

impl Note {
    pub fn new(job: &str, protocol: Protocol, (rank, image): (usize, u64), counts: Counts, account: Value) -> Note {
        Note {
            version: VERSION,
            job: job.to_string(),
            protocol: protocol.name().to_string(),
            rank,
            image,
            counts,
            account,
        }
    }

    pub fn to_text(&self) -> String {
        // Strings, numbers and a value that JSON has.
        serde_json::to_string(self).expect("a note can be written as JSON")
    }

    /// # Errors
    /// It is of a newer version, or not a note.
    pub fn read(text: &str) -> Result<Note, NoteError> {
        let any: AnyVersion = serde_json::from_str(text).map_err(NoteError::Unreadable)?;
        match any.version {
            1..=VERSION => serde_json::from_str(text).map_err(NoteError::Unreadable),
            newer => Err(NoteError::Newer(newer)),
        }
    }

    /// # Errors
    /// It is not the note of this image of `job`, in a file of this name.
    pub fn must_be(&self, job: &str, name: &str) -> Result<(), NoteError> {
        match self.job == job && name == file_name(self.rank, self.image) {
            true => Ok(()),
            false => Err(NoteError::Other {
                job: self.job.clone(),
                rank: self.rank,
                image: self.image,
            }),
        }
    }
}

/// The name of the file of an image.
pub fn file_name(rank: usize, image: u64) -> String {
    format!("rank-{rank}.image-{image}")
}

/// It is the name of the file of an image.
pub fn is_file_name(name: &OsStr) -> bool {
    number_of(name).is_some()
}

/// The number of the image in a file with this name; none for other files.
pub fn number_of(name: &OsStr) -> Option<u64> {
    let (rank, number) = name.to_str()?.strip_prefix("rank-")?.split_once(".image-")?;
    rank.parse::<u64>().ok().and(number.parse().ok())
}

/// The name of the file with the log that the image in file `image` needs.
pub fn log_of(image: &OsStr) -> OsString {
    let name = image.to_string_lossy();
    name.replace(".image-", ".log-").into()
}

/// The image file that a file with this name belongs to.
pub fn image_of(log: &OsStr) -> OsString {
    let name = log.to_string_lossy();
    name.replace(".log-", ".image-").into()
}

/// The part of an account for people.
#[derive(Deserialize)]
struct Account {
    printed: [Printed; 2],
    pmi: Position,
    read: u64,
}

#[derive(Deserialize)]
struct Printed {
    bytes: u64,
}

/// For people: a few lines.
pub fn describe(text: &str) -> Result<String, NoteError> {
    let note = Note::read(text)?;
    let mut lines = String::new();
    // Writing to a String cannot fail.
    let _ = note.write(&mut lines, text);
    Ok(lines)
}

impl Note {
    fn write(&self, lines: &mut String, text: &str) -> fmt::Result {
        let Note { job, rank, image, .. } = self;
        writeln!(
            lines,
            "note       image {image} of rank {rank} of job {}",
            one_line(job)
        )?;
        let Ok(account) = Account::deserialize(&self.account) else {
            // Of the first version, whose account is text for people.
            return writeln!(lines, "account    {}", one_line(text));
        };
        let [output, errors] = account.printed.map(|printed| counted(printed.bytes, "byte", "bytes"));
        writeln!(
            lines,
            "printed    {output} on standard output, {errors} on standard error"
        )?;
        writeln!(lines, "input      {} read", counted(account.read, "byte", "bytes"))?;
        writeln!(lines, "PMI        {}", account.pmi)?;
        writeln!(lines, "protocol   {}", one_line(&self.protocol))?;
        let deliveries = counted(self.counts.deliveries, "delivery", "deliveries");
        let channels = &self.counts.channels;
        writeln!(
            lines,
            "covers     {deliveries}, of channels with {} ranks",
            channels.len()
        )?;
        for channel in channels {
            let Channel {
                peer,
                sent,
                delivered,
                cursor,
            } = channel;
            writeln!(
                lines,
                "  rank {peer:>4}: {sent} sent to it, {delivered} delivered from it, its log read from segment {cursor}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn note() -> Note {
        let channel = |peer| Channel {
            peer,
            sent: 7,
            delivered: 5 + peer as u64,
            cursor: 2,
        };
        let counts = Counts {
            deliveries: 11,
            channels: vec![channel(0), channel(3)],
        };
        let printed = |bytes| json!({ "bytes": bytes, "units": 1 });
        let account = json!({ "printed": [printed(9), printed(1)], "pmi": Position::default(), "read": 4 });
        Note::new("job", Protocol::Causal, (2, 6), counts, account)
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let note = note();
        assert_eq!(Note::read(&note.to_text()).unwrap(), note);
        assert!(note.must_be("job", "rank-2.image-6").is_ok());
    }

    #[test]
    fn a_note_of_another_image_is_refused() {
        for (job, name) in [
            ("other", "rank-2.image-6"),
            ("job", "rank-3.image-6"),
            ("job", "rank-2.image-7"),
            ("job", "rank-2.image-6.old"),
        ] {
            let refused = note().must_be(job, name).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "it is image 6 of rank 2 of job job",
                "{job} {name}"
            );
        }
    }

    #[test]
    fn a_note_from_before_there_were_versions_is_read() {
        let text = r#"{"image":6,"input":4,"job":"job","pmi":"Position { puts: 3 }","printed":[9,1],"rank":2}"#;
        let old = Note::read(text).unwrap();
        assert_eq!(
            (old.version, &old.counts, &old.account),
            (1, &Counts::default(), &Value::Null)
        );
        assert!(old.must_be("job", "rank-2.image-6").is_ok());
        assert!(describe(text).unwrap().contains("puts: 3"), "what it says is shown");
    }

    #[test]
    fn a_newer_note_is_refused_whatever_else_is_in_it() {
        for text in [
            r#"{"version":3}"#.to_string(),
            note().to_text().replace("\"version\":2", "\"version\":4294967295"),
        ] {
            let refused = Note::read(&text).unwrap_err().to_string();
            assert!(refused.contains("use the version that has written it"), "{refused}");
        }
    }

    #[test]
    fn damaged_notes_are_refused() {
        let text = note().to_text();
        for cut in 0..text.len() {
            assert!(
                matches!(Note::read(&text[..cut]), Err(NoteError::Unreadable(_))),
                "{cut}"
            );
        }
        for wrong in [
            text.replace("\"version\":2", "\"version\":0"),
            text.replace("\"version\":2", "\"version\":-1"),
            text.replace("\"rank\":2", "\"rank\":\"2\""),
            text.replace("[0,7,5,2]", "[0,7,5]"),
        ] {
            assert!(Note::read(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn people_are_shown_where_the_rank_was() {
        let shown = describe(&note().to_text()).unwrap();
        for line in [
            "note       image 6 of rank 2 of job job\n",
            "printed    9 bytes on standard output, 1 byte on standard error\n",
            "input      4 bytes read\n",
            "protocol   causal\n",
            "covers     11 deliveries, of channels with 2 ranks\n",
            "  rank    3: 7 sent to it, 8 delivered from it, its log read from segment 2\n",
        ] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
    }
}
