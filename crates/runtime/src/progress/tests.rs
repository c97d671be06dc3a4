//! What a terminal is told, letter by letter.

use std::io;

use indicatif::TermLike;

use super::*;

/// What has been written to the terminal of this thread's test: tests of bars go one after the other.
static WRITTEN: Mutex<String> = Mutex::new(String::new());
static ONE: Mutex<()> = Mutex::new(());

#[derive(Debug)]
struct Paper;

impl Paper {
    fn write(text: &str) -> io::Result<()> {
        lock(&WRITTEN).push_str(text);
        Ok(())
    }
}

impl TermLike for Paper {
    fn width(&self) -> u16 {
        70
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        Paper::write(text)?;
        Paper::write("\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        Paper::write(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        Paper::write("<clear>")
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::term_like(Box::new(Paper))
}

fn images(done: u64) -> Option<Progress> {
    Some(Progress {
        text: format!("{done} of 4\nimages"),
        done: Some((done, 4)),
    })
}

/// Waits until the terminal was told this.
fn until(wanted: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    while !lock(&WRITTEN).contains(wanted) {
        assert!(Instant::now() < end, "{wanted:?} is not in {:?}", lock(&WRITTEN));
        std::thread::yield_now();
    }
}

/// A bar whose user has this patience; the terminal is new.
fn bar(patience: Duration) -> Bar {
    lock(&WRITTEN).clear();
    Bar::start(true, patience, target)
}

#[test]
fn a_bar_shows_the_part_that_is_done_and_goes() {
    let _one = lock(&ONE);
    let bar = bar(Duration::ZERO);
    bar.tell(images(1));
    until("resurgo: [=====>              ] 1 of 4 images (1.0 s)");
    bar.tell(images(4));
    until("resurgo: [====================] 4 of 4 images (");
    bar.tell(Some(Progress::of("output is being written")));
    until("resurgo: output is being written (");
    bar.follow(|| Progress::of("each time"));
    until("resurgo: each time (");
    drop(bar);
    assert!(lock(&WRITTEN).ends_with("<clear>"), "{:?}", lock(&WRITTEN));
}

#[test]
fn nothing_is_shown_of_what_is_done_soon_or_of_what_nobody_sees() {
    let _one = lock(&ONE);
    let soon = bar(Duration::from_secs(3600));
    soon.tell(images(1));
    soon.tell(None);
    drop(soon);
    let unseen = Bar::start(false, Duration::ZERO, target);
    unseen.tell(images(1));
    drop(unseen);
    assert_eq!(*lock(&WRITTEN), "");
}

#[test]
fn other_text_has_the_terminal_to_itself() {
    let _one = lock(&ONE);
    let bar = bar(Duration::ZERO);
    let beside = bar.beside();
    bar.tell(images(2));
    until("2 of 4 images");
    let mut turn = beside.turn();
    assert!(lock(&WRITTEN).ends_with("<clear>"), "{:?}", lock(&WRITTEN));
    lock(&WRITTEN).clear();
    bar.tell(images(3));
    turn.wrote(b"a line\n");
    drop(turn);
    until("3 of 4 images");

    // A question waits for its answer.
    let mut turn = beside.turn();
    turn.wrote(b"how many? ");
    lock(&WRITTEN).clear();
    drop(turn);
    bar.tell(None);
    drop(bar);
    assert_eq!(*lock(&WRITTEN), "");
}
