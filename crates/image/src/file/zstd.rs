//! Compression by zstd (RFC 8878). The writer has no allocator: its compressor lives in an area of its own. The reader
//! is an ordinary process.

use std::ffi::CStr;
use std::ptr::NonNull;

use zstd_sys::{
    ZSTD_CCtx, ZSTD_CCtx_setParameter, ZSTD_DCtx, ZSTD_DCtx_setParameter, ZSTD_EndDirective, ZSTD_cParameter,
    ZSTD_compressStream2, ZSTD_createDCtx, ZSTD_dParameter, ZSTD_decompressStream, ZSTD_estimateCStreamSize,
    ZSTD_freeDCtx, ZSTD_getErrorName, ZSTD_inBuffer, ZSTD_initStaticCCtx, ZSTD_isError, ZSTD_outBuffer,
};

use crate::pages::PAGE;
use crate::trouble::Trouble;
use crate::zone::Area;

/// The highest level; levels above need much more memory, also to read them.
pub const MOST: u8 = 19;
/// Binary logarithm of the window of that level: how far back a reader has to remember.
const WINDOW: i32 = 23;

const CANNOT: Trouble = Trouble::new("zstd cannot compress it", 0);

/// Whether a result is an error.
fn is_error(result: usize) -> bool {
    // SAFETY: looks at the number.
    unsafe { ZSTD_isError(result) != 0 }
}

/// Makes one frame of everything that it is given.
pub struct Encoder {
    context: NonNull<ZSTD_CCtx>,
    /// Where the context lies.
    _memory: Area,
}

impl Encoder {
    /// In area `area`; `level`: 1 to [`MOST`].
    pub fn new(area: usize, level: u8) -> Result<Encoder, Trouble> {
        let mut memory = Area::new(area);
        // SAFETY: computes a number.
        let needed = unsafe { ZSTD_estimateCStreamSize(level.into()) };
        if is_error(needed) {
            return Err(CANNOT);
        }
        memory.resize(needed.next_multiple_of(PAGE)).map_err(Trouble::memory)?;
        let bytes = memory.bytes_mut();
        // SAFETY: aligned memory of that length, which stays the context's while the area is held. Every context has
        // these parameters.
        unsafe {
            let context = NonNull::new(ZSTD_initStaticCCtx(bytes.as_mut_ptr().cast(), bytes.len())).ok_or(CANNOT)?;
            let set = |parameter, value| is_error(ZSTD_CCtx_setParameter(context.as_ptr(), parameter, value));
            if set(ZSTD_cParameter::ZSTD_c_compressionLevel, level.into())
                || set(ZSTD_cParameter::ZSTD_c_checksumFlag, 1)
            {
                return Err(CANNOT);
            }
            Ok(Encoder {
                context,
                _memory: memory,
            })
        }
    }

    /// Compresses bytes of `from` into `to`; `last`: nothing follows. Returns how many it took, how many it gave, and
    /// whether that was all. If not, `to` is full.
    pub fn step(&mut self, from: &[u8], to: &mut [u8], last: bool) -> Result<(usize, usize, bool), Trouble> {
        let (mut input, mut output) = buffers(from, to);
        let directive = if last {
            ZSTD_EndDirective::ZSTD_e_end
        } else {
            ZSTD_EndDirective::ZSTD_e_continue
        };
        // SAFETY: the context is whole, and both buffers are as long as they say.
        let left = unsafe { ZSTD_compressStream2(self.context.as_ptr(), &mut output, &mut input, directive) };
        if is_error(left) {
            return Err(CANNOT);
        }
        let all = input.pos == from.len() && (!last || left == 0);
        Ok((input.pos, output.pos, all))
    }
}

/// Decompresses one frame.
pub struct Decoder(NonNull<ZSTD_DCtx>);

impl Decoder {
    pub fn new() -> Result<Decoder, String> {
        // SAFETY: a new context; the parameter is one that every context has.
        unsafe {
            let decoder = NonNull::new(ZSTD_createDCtx()).map(Decoder);
            let decoder = decoder.ok_or("there is no memory for zstd")?;
            let set = ZSTD_DCtx_setParameter(decoder.0.as_ptr(), ZSTD_dParameter::ZSTD_d_windowLogMax, WINDOW);
            said(set).map(|_| decoder)
        }
    }

    /// Decompresses bytes of `from` into `to`. Returns how many it took and gave, and whether the frame has ended.
    pub fn step(&mut self, from: &[u8], to: &mut [u8]) -> Result<(usize, usize, bool), String> {
        let (mut input, mut output) = buffers(from, to);
        // SAFETY: the context is whole, and both buffers are as long as they say.
        let left = said(unsafe { ZSTD_decompressStream(self.0.as_ptr(), &mut output, &mut input) })?;
        Ok((input.pos, output.pos, left == 0))
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { ZSTD_freeDCtx(self.0.as_ptr()) };
    }
}

/// Both buffers in zstd's own form.
fn buffers(from: &[u8], to: &mut [u8]) -> (ZSTD_inBuffer, ZSTD_outBuffer) {
    let input = ZSTD_inBuffer {
        src: from.as_ptr().cast(),
        size: from.len(),
        pos: 0,
    };
    let output = ZSTD_outBuffer {
        dst: to.as_mut_ptr().cast(),
        size: to.len(),
        pos: 0,
    };
    (input, output)
}

/// A result, or zstd's name for what is wrong.
fn said(result: usize) -> Result<usize, String> {
    if !is_error(result) {
        return Ok(result);
    }
    // SAFETY: names are constants, and terminated.
    let name = unsafe { CStr::from_ptr(ZSTD_getErrorName(result)) };
    Err(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_level_needs_a_greater_window_than_readers_allow() {
        for level in 1..=MOST {
            // SAFETY: looks into a table.
            let parameters = unsafe { zstd_sys::ZSTD_getCParams(level.into(), 0, 0) };
            assert!(parameters.windowLog <= WINDOW as u32, "level {level}");
        }
    }
}
