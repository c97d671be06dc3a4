//! The accepted output of one stream of a rank, over all its lives.
//!
//! A later life repeats the output of earlier ones. [`Taken`] drops what is equal, so every byte is passed on exactly
//! once. A line that differs only in numbers mostly shows a measured time: the first version stands. The new one is
//! held back until this is certain. Any other difference is passed on from the first differing line: the program has
//! taken another course, and this output is new. A life that ends although an earlier one printed more has also taken
//! another course.

use serde::{Deserialize, Serialize};

use super::wording::{self, LEFT_OUT};

/// So many units are single lines; those after them are [`COARSE`] lines each, so that long outputs need little memory.
const FINE_UNITS: u64 = 16 << 10;
const COARSE: u32 = 64;
/// Most bytes of a unit; longer text goes into the next one.
const UNIT: usize = 16 << 10;
/// Most bytes held back.
const HELD: usize = 256 << 10;

/// FNV-1a: cheap, and a rank does not attack its own output.
struct Hash(u64);

impl Hash {
    const EMPTY: Hash = Hash(0xcbf2_9ce4_8422_2325);

    fn put(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }

    fn short(&self) -> u32 {
        (self.0 ^ (self.0 >> 32)) as u32
    }
}

/// Remembered lines: hashes of their bytes, of them without measured numbers, and without any numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Unit([u32; 3]);

impl Unit {
    fn of(text: &[u8]) -> Unit {
        let mut hashes = [Hash::EMPTY; 3];
        text.iter().for_each(|byte| hashes[0].put(*byte));
        wording::without_measured(text, |byte| hashes[1].put(byte));
        wording::without_numbers(text, |byte| hashes[2].put(byte));
        Unit(hashes.map(|hash| hash.short()))
    }
}

/// The unit that is being printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    text: Vec<u8>,
    lines: u32,
}

impl Part {
    /// Adds what belongs to unit `number` of the `text` that follows, and returns the rest.
    fn take<'a>(&mut self, number: u64, text: &'a [u8]) -> &'a [u8] {
        let missing = Part::lines_of(number) - self.lines;
        let mut ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let last = ends.nth(missing as usize - 1).map_or(text.len(), |(at, _)| at + 1);
        let (now, rest) = text.split_at(last.min(UNIT - self.text.len()));
        self.lines += now.iter().filter(|byte| **byte == b'\n').count() as u32;
        self.text.extend_from_slice(now);
        rest
    }

    fn is_whole(&self, number: u64) -> bool {
        self.lines == Part::lines_of(number) || self.text.len() == UNIT
    }

    fn lines_of(number: u64) -> u32 {
        if number < FINE_UNITS { 1 } else { COARSE }
    }
}

/// The text that a life prints instead of the first version, from unit `from` on; not passed on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    from: u64,
    /// How much the life had printed before.
    offset: u64,
    text: Vec<u8>,
    /// Bytes at its beginning that were passed on before the image.
    passed_on: usize,
    /// Up to here, in bytes and units, unique lines have shown that the life takes the same course.
    certain: (usize, u64),
}

/// A life's progress in its output: a later life that begins from an image goes on here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    bytes: u64,
    units: u64,
    part: Part,
    /// Bytes at the beginning of the part that were passed on.
    passed_on: usize,
    held: Option<Held>,
    /// Most units between two that showed the same course.
    stride: u64,
}

/// One stream of one rank.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Taken {
    /// Bytes passed on over all lives, on the program's last course.
    bytes: u64,
    units: Vec<Unit>,
    part: Part,
    /// The present life, until it has repeated all of that.
    life: Option<Printed>,
    /// The life computes the same for certain: its messages are compared.
    is_replay: bool,
    /// The dispatcher does not wait for the rest of the life's repetition.
    forgiven: bool,
    told: bool,
}

/// Output differs from the first version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// Bytes that the life had printed before that line.
    pub offset: u64,
    /// The new text was passed on; otherwise the first version stands.
    pub anew: bool,
}

/// What follows from printed text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accepted {
    /// To be passed on.
    pub new: Vec<u8>,
    pub difference: Option<Difference>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likeness {
    Equal,
    /// But for measured numbers.
    Measured,
    /// But for numbers.
    Numbers,
    None,
}

impl Taken {
    /// A new life begins, whose output starts where an earlier one's was at `from`. `is_replay`: it repeats messages as well.
    pub fn restarted(&mut self, mut from: Printed, is_replay: bool) {
        (self.is_replay, self.forgiven) = (is_replay, false);
        let end = self.units.len() as u64;
        if from.units > end {
            // From a course that was left since.
            from = self.end();
        }
        let is_behind = from.units < end || !from.part.text.starts_with(&self.part.text);
        self.life = Some(from).filter(|_| is_behind);
    }

    /// The position where all output is repeated.
    fn end(&self) -> Printed {
        Printed {
            bytes: self.bytes,
            units: self.units.len() as u64,
            part: self.part.clone(),
            passed_on: self.part.text.len(),
            ..Printed::default()
        }
    }

    /// How far the present life has printed.
    pub fn printed(&self) -> Printed {
        self.life.clone().unwrap_or_else(|| self.end())
    }

    /// The present life has not repeated all that was passed on, and the dispatcher waits for it.
    pub fn repeats(&self) -> bool {
        self.behind() > 0
    }

    /// Bytes passed on that this life has yet to repeat, while the dispatcher waits. About so many if it prints others,
    /// but 0 only if it is not behind.
    pub fn behind(&self) -> u64 {
        if self.forgiven { 0 } else { self.missing() }
    }

    /// The same, even if the dispatcher does not wait.
    pub fn missing(&self) -> u64 {
        self.life
            .as_ref()
            .map_or(0, |life| self.bytes.saturating_sub(life.bytes).max(1))
    }

    /// Stops waiting for this life's repetition. It is still compared.
    pub fn forgive(&mut self) {
        self.forgiven = true;
    }

    /// Takes what the present life has printed next.
    pub fn accept(&mut self, chunk: &[u8]) -> Accepted {
        let mut accepted = Accepted::default();
        let mut rest = chunk;
        while !rest.is_empty() {
            let Some(mut life) = self.life.take() else { break };
            let before = rest.len();
            rest = life.part.take(life.units, rest);
            life.bytes += (before - rest.len()) as u64;
            self.compare(life, &mut accepted);
        }
        self.append(rest);
        accepted.new.extend_from_slice(rest);
        accepted
    }

    /// No life runs: adds text that the last one printed and that was passed on.
    pub fn take_printed(&mut self, bytes: &[u8]) {
        self.life = None;
        self.append(bytes);
    }

    /// The present life has ended as a program should.
    pub fn end_life(&mut self) -> Accepted {
        let mut accepted = Accepted::default();
        let Some(life) = self.life.take() else { return accepted };
        let is_prefix = life.units == self.units.len() as u64 && self.part.text.starts_with(&life.part.text);
        if life.held.is_some() || !(is_prefix || life.part.text.is_empty()) {
            self.print_anew(life, &mut accepted);
        } else {
            self.life = Some(life);
        }
        accepted
    }

    /// Compares the part that `life` prints, as far as it has come.
    fn compare(&mut self, mut life: Printed, accepted: &mut Accepted) {
        let is_whole = life.part.is_whole(life.units);
        let Some(unit) = self.units.get(life.units as usize).copied() else {
            return self.compare_end(life, is_whole, accepted);
        };
        if !is_whole {
            self.life = Some(life);
            return;
        }
        let likeness = self.likeness(unit, Unit::of(&life.part.text));
        if likeness == Likeness::None {
            return self.print_anew(life, accepted);
        }
        self.hold(&mut life, likeness);
        if self.is_certain(&life, unit, likeness) {
            self.note_certain(&mut life, likeness, accepted);
        }
        if life.held.as_ref().is_some_and(|held| held.text.len() > HELD) {
            if !self.is_replay && life.held.as_ref().is_some_and(|held| held.certain.0 == 0) {
                return self.print_anew(life, accepted);
            }
            self.let_stand(&mut life, accepted);
        }
        if life.units < self.units.len() as u64 || !self.part.text.is_empty() {
            self.life = Some(life);
        } else if !self.let_stand(&mut life, accepted) {
            self.print_anew(life, accepted);
        }
    }

    /// The same for the last part, which is not whole.
    fn compare_end(&mut self, mut life: Printed, is_whole: bool, accepted: &mut Accepted) {
        let (first, now) = (&self.part.text, &life.part.text);
        let place = place_of_end(first, now);
        let is_equal = now.starts_with(first);
        let lines = (self.part.lines, life.part.lines);
        let is_whole = is_whole || lines.0 < lines.1 || (lines.0 == lines.1 && first.ends_with(b"\n"));
        // The dispatcher does not wait for a life that repeats no messages, so the whole line can be compared.
        let is_alike =
            !is_equal && (is_whole || self.is_replay && !first.starts_with(now)) && self.is_alike(first, now);
        if !is_equal && !is_alike && !is_whole {
            self.life = Some(life);
            return;
        }
        if !is_equal && !is_alike || !self.let_stand(&mut life, accepted) {
            return self.print_anew(life, accepted);
        }
        if is_alike {
            self.tell(life.bytes - life.part.text.len() as u64, false, accepted);
        }
        accepted.new.extend_from_slice(&life.part.text[place..]);
        // Later lives repeat a line of one life, not one composed of two.
        self.part = Part::default();
        self.bytes = life.bytes - life.part.text.len() as u64;
        self.append(&life.part.text);
    }

    /// A unit has shown that the life takes the same course.
    fn note_certain(&mut self, life: &mut Printed, likeness: Likeness, accepted: &mut Accepted) {
        let Some(held) = &mut life.held else { return };
        life.stride = life.stride.max(life.units - held.certain.1);
        held.certain = (held.text.len(), life.units);
        if likeness == Likeness::Equal {
            self.let_stand(life, accepted);
        }
    }

    /// Keeps the first version and drops the certain part of the held text. False if other text is left.
    fn let_stand(&mut self, life: &mut Printed, accepted: &mut Accepted) -> bool {
        let Some(mut held) = life.held.take() else { return true };
        let (bytes, unit) = held.certain;
        if bytes > 0 || self.is_replay {
            self.tell(held.offset, false, accepted);
        }
        if self.is_replay || life.units - unit <= life.stride {
            return true;
        }
        if bytes > 0 {
            held.text.drain(..bytes);
            held.offset += bytes as u64;
            (held.from, held.passed_on, held.certain) = (unit, 0, (0, unit));
        }
        let is_all = held.text.is_empty();
        life.held = Some(held).filter(|_| !is_all);
        is_all
    }

    /// Keeps a unit that is not equal, and those that follow it; goes on to the next one.
    fn hold(&mut self, life: &mut Printed, likeness: Likeness) {
        let text = std::mem::take(&mut life.part).text;
        let offset = life.bytes - text.len() as u64;
        if likeness != Likeness::Equal && life.held.is_none() {
            life.held = Some(Held {
                from: life.units,
                offset,
                passed_on: life.passed_on,
                certain: (0, life.units),
                ..Held::default()
            });
        }
        if let Some(held) = &mut life.held {
            held.text.extend_from_slice(&text);
        }
        life.passed_on = 0;
        life.units += 1;
    }

    fn likeness(&self, first: Unit, now: Unit) -> Likeness {
        match (first.0, now.0) {
            (first, now) if first[0] == now[0] => Likeness::Equal,
            (first, now) if first[1] == now[1] => Likeness::Measured,
            (first, now) if first[2] == now[2] && self.is_replay => Likeness::Numbers,
            _ => Likeness::None,
        }
    }

    /// Whether a unit shows where the life is: nothing else that was printed reads like it.
    fn is_certain(&self, life: &Printed, unit: Unit, likeness: Likeness) -> bool {
        let same = |other: &&Unit| other.0[1] == unit.0[1];
        life.held.is_some() && likeness != Likeness::Numbers && self.units.iter().filter(same).nth(1).is_none()
    }

    /// Whether the beginning of `now` reads like `first`, which may break off anywhere.
    fn is_alike(&self, first: &[u8], now: &[u8]) -> bool {
        let reads = |without: fn(&[u8], &mut dyn FnMut(u8)), text: &[u8]| {
            let mut reading = Vec::with_capacity(text.len());
            without(text, &mut |byte| reading.push(byte));
            reading
        };
        let is_like = |without: fn(&[u8], &mut dyn FnMut(u8))| {
            let (mut first, now) = (reads(without, first), reads(without, now));
            // A number cut off at the end may be any.
            let breaks_off = first.pop_if(|byte| *byte == LEFT_OUT).is_some();
            now.strip_prefix(first.as_slice())
                .is_some_and(|rest| !breaks_off || rest.first() == Some(&LEFT_OUT))
        };
        is_like(|text, emit| wording::without_measured(text, emit))
            || (self.is_replay && is_like(|text, emit| wording::without_numbers(text, emit)))
    }

    /// The present life takes another course: its text from the first differing line is passed on. Later lives are
    /// compared with it.
    fn print_anew(&mut self, life: Printed, accepted: &mut Accepted) {
        let held = life.held.unwrap_or_else(|| Held {
            from: life.units,
            offset: life.bytes - life.part.text.len() as u64,
            passed_on: life.passed_on,
            ..Held::default()
        });
        self.tell(held.offset, true, accepted);
        if !self.ends_with_line() {
            accepted.new.push(b'\n');
        }
        self.units.truncate(held.from as usize);
        self.part = Part::default();
        self.bytes = held.offset;
        let text = [held.text, life.part.text].concat();
        self.append(&text);
        accepted.new.extend_from_slice(&text[held.passed_on.min(text.len())..]);
    }

    /// All output passed on consists of whole lines, as far as is known.
    fn ends_with_line(&self) -> bool {
        self.part.text.last().is_none_or(|byte| *byte == b'\n')
    }

    /// Reports once that the first version was not repeated, but every new course.
    fn tell(&mut self, offset: u64, anew: bool, accepted: &mut Accepted) {
        if anew || !std::mem::replace(&mut self.told, true) {
            accepted.difference = Some(Difference { offset, anew });
        }
    }

    fn append(&mut self, mut text: &[u8]) {
        self.bytes += text.len() as u64;
        while !text.is_empty() {
            let number = self.units.len() as u64;
            text = self.part.take(number, text);
            if self.part.is_whole(number) {
                self.units.push(Unit::of(&self.part.text));
                self.part = Part::default();
            }
        }
    }
}

/// The position in `now` where `first` ends: in the same line, and at most at its end.
fn place_of_end(first: &[u8], now: &[u8]) -> usize {
    let lines = first.iter().filter(|byte| **byte == b'\n').count();
    let column = first.iter().rev().take_while(|byte| **byte != b'\n').count();
    let mut ends = now.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let begin = match lines {
        0 => 0,
        _ => ends.nth(lines - 1).map_or(now.len(), |(at, _)| at + 1),
    };
    let length = now[begin..].iter().position(|byte| *byte == b'\n');
    begin + column.min(length.unwrap_or(now.len() - begin))
}

#[cfg(test)]
mod tests;
