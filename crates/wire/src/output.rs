//! Bytes that a connection has to send.

/// Bytes that are to go.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    gone: usize,
}

impl Output {
    /// The end, to which new bytes are appended.
    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.gone..]
    }

    pub fn is_empty(&self) -> bool {
        self.gone == self.bytes.len()
    }

    /// Notes that the first `bytes` of [`Self::bytes`] are sent.
    pub fn sent(&mut self, bytes: usize) {
        self.gone += bytes;
        assert!(self.gone <= self.bytes.len(), "{bytes} bytes sent, fewer were to go");
        if self.is_empty() {
            self.bytes.clear();
            self.gone = 0;
        } else if self.gone > self.bytes.len() / 2 {
            self.bytes.drain(..self.gone);
            self.gone = 0;
        }
    }
}
