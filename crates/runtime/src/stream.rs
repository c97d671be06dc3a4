//! A TCP connection to another machine, encrypted if the job asks for that.
//!
//! TLS 1.3 with a key pair that both sides derive from the job's key, so no other secret is needed. The called side
//! shows its public key and proves the private one (RFC 7250); the calling side knows the right one. The caller proves
//! inside, by the handshake of all connections, that it belongs to the job.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SetSockOpt, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, socket, sockopt,
};
use nix::{libc, setsockopt_impl, sockopt_impl};
use resurgo_wire::control::Job;
use resurgo_wire::mesh::{LONGEST_PAUSE, TCP_RTO_MAX_MS, TRIES};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ServerConfig};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, Error, SignatureScheme};

/// The context for deriving the key pair from the job's key.
const CONTEXT: &str = "resurgo 2026-11-26 key pair of a job's connections";
/// The bytes before the private key of Ed25519 in PKCS #8 (RFC 8410).
const PKCS8: [u8; 16] = [48, 46, 2, 1, 0, 48, 5, 6, 3, 43, 101, 112, 4, 34, 4, 32];
sockopt_impl!(RtoMax, SetOnly, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, u32);
/// All peers have the same name: only the key counts.
const NAME: &str = "resurgo";

/// After a cut what was on its way arrives within a second, not only when the cut has lasted once more. Kernels that do
/// not know the limit leave the socket as it is.
fn outlive_cuts(socket: &TcpStream) {
    if RtoMax.set(socket, &LONGEST_PAUSE).is_ok() {
        let _ = sockopt::TcpUserTimeout.set(socket, &TRIES);
    }
}

/// The encryption of a job's connections.
#[derive(Clone, Debug)]
pub struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// For a job on several nodes, if it asks for that.
    ///
    /// # Errors
    /// As [`Tls::of`].
    pub fn of_job(job: &Job) -> io::Result<Option<Tls>> {
        let is_encrypted = job.nodes.as_ref().is_some_and(|nodes| nodes.is_encrypted);
        Tls::wanted(is_encrypted, &job.key)
    }

    /// For a job with this key, if what is said is encrypted.
    ///
    /// # Errors
    /// As [`Tls::of`].
    pub fn wanted(is_encrypted: bool, key: &[u8; 32]) -> io::Result<Option<Tls>> {
        is_encrypted.then(|| Tls::of(key)).transpose()
    }

    /// For a job with this key.
    ///
    /// # Errors
    /// The library refuses the key.
    pub fn of(key: &[u8; 32]) -> io::Result<Tls> {
        let seed = blake3::derive_key(CONTEXT, key);
        let pair = PrivatePkcs8KeyDer::from([&PKCS8[..], &seed].concat());
        let signer = ring::sign::any_eddsa_type(&pair).map_err(io::Error::other)?;
        let public = signer.public_key().ok_or(io::ErrorKind::Unsupported)?.into_owned();
        let shown = CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], signer);
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![
                ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
                ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            ],
            ..ring::default_provider()
        });
        let known = Known {
            public,
            algorithms: provider.signature_verification_algorithms,
        };
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(known))
            .with_no_client_auth();
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(shown))));
        server.send_tls13_tickets = 0;
        Ok(Tls {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }
}

/// Accepts exactly one public key.
#[derive(Debug)]
struct Known {
    public: SubjectPublicKeyInfoDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match shown.as_ref() == self.public.as_ref() {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(Error::General("this is not the key of this job".to_string())),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("nobody here speaks TLS 1.2".to_string()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(message, &self.public, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// One connection, which may block or not, as its socket does.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
    tls: Option<Box<rustls::Connection>>,
    /// Deciphered bytes that are unread.
    held: usize,
    has_spoken: bool,
}

impl Stream {
    /// Begins to call, and does not block; the socket can be written to when that has succeeded or failed.
    ///
    /// # Errors
    /// It cannot succeed.
    pub fn call(address: SocketAddr, tls: Option<&Tls>) -> io::Result<Stream> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(family, SockType::Stream, flags, None)?;
        let called = match address {
            SocketAddr::V4(address) => connect(fd.as_raw_fd(), &SockaddrIn::from(address)),
            SocketAddr::V6(address) => connect(fd.as_raw_fd(), &SockaddrIn6::from(address)),
        };
        match called {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let socket = TcpStream::from(fd);
        socket.set_nodelay(true)?;
        Stream::calling(socket, tls)
    }

    /// A connection to a called peer.
    pub fn calling(socket: TcpStream, tls: Option<&Tls>) -> io::Result<Stream> {
        let connection = |tls: &Tls| {
            let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
            let client = rustls::ClientConnection::new(tls.client.clone(), name).map_err(io::Error::other)?;
            Ok::<_, io::Error>(Box::new(client.into()))
        };
        Ok(Stream::of(socket, tls.map(connection).transpose()?))
    }

    /// A connection from a calling peer.
    pub fn called(socket: TcpStream, tls: Option<&Tls>) -> io::Result<Stream> {
        let connection = |tls: &Tls| {
            let server = rustls::ServerConnection::new(tls.server.clone()).map_err(io::Error::other)?;
            Ok::<_, io::Error>(Box::new(server.into()))
        };
        Ok(Stream::of(socket, tls.map(connection).transpose()?))
    }

    fn of(socket: TcpStream, tls: Option<Box<rustls::Connection>>) -> Stream {
        outlive_cuts(&socket);
        Stream {
            socket,
            tls,
            held: 0,
            has_spoken: false,
        }
    }

    /// The socket itself, apart from its data.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// There is input although the socket may have none.
    pub fn holds(&self) -> bool {
        self.held > 0
    }

    /// Written bytes wait until the socket takes them: see [`Stream::flush`].
    pub fn owes(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Some input has come.
    pub fn has_spoken(&self) -> bool {
        self.has_spoken
    }
}

/// It may succeed later.
pub fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Sends what the socket takes.
fn push(tls: &mut rustls::Connection, socket: &mut TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        match tls.write_tls(socket) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The same, where it does not matter that the socket takes nothing now.
fn push_some(tls: &mut rustls::Connection, socket: &mut TcpStream) -> io::Result<()> {
    match push(tls, socket) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        pushed => pushed,
    }
}

impl Read for Stream {
    /// `Ok(0)`: the other side has closed, in order or not.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            let came = self.socket.read(bytes)?;
            self.has_spoken |= came > 0;
            return Ok(came);
        };
        loop {
            match tls.reader().read(bytes) {
                Ok(came) => {
                    self.held = self.held.saturating_sub(came);
                    return Ok(came);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) => return Err(error),
            }
            if tls.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            self.has_spoken = true;
            let state = tls.process_new_packets();
            // Also the reason for a refusal.
            let pushed = push_some(tls, &mut self.socket);
            let state = state.map_err(|error| io::Error::new(io::ErrorKind::ConnectionAborted, error))?;
            self.held = state.plaintext_bytes_to_read();
            if self.held == 0 {
                pushed?;
            }
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.socket.write(bytes);
        };
        // A socket that is not connected yet takes nothing.
        push(tls, &mut self.socket)?;
        let taken = tls.writer().write(bytes)?;
        push_some(tls, &mut self.socket)?;
        match taken {
            0 if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => push(tls, &mut self.socket),
            None => Ok(()),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const KEY: [u8; 32] = [7; 32];

    /// Both ends, with the keys of the one that calls and of the one that is called.
    fn pair(calling: Option<[u8; 32]>, called: Option<[u8; 32]>) -> (Stream, Stream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let tls = |key: Option<[u8; 32]>| key.map(|key| Tls::of(&key).unwrap());
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (
            Stream::calling(ours, tls(calling).as_ref()).unwrap(),
            Stream::called(theirs, tls(called).as_ref()).unwrap(),
        )
    }

    /// Sends all of it, and returns the output at the other end.
    fn through(from: &mut Stream, to: &mut Stream, sent: &[u8]) -> io::Result<Vec<u8>> {
        let (mut left, mut came, mut bytes) = (sent, Vec::new(), vec![0; 1000]);
        let blocked = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => Ok(0),
            _ => Err(error),
        };
        while came.len() < sent.len() {
            if !left.is_empty() {
                left = &left[from.write(left).or_else(blocked)?..];
            }
            let _ = from.flush().map(|()| 0).or_else(blocked)?;
            loop {
                let length = to.read(&mut bytes).or_else(blocked)?;
                came.extend_from_slice(&bytes[..length]);
                if length == 0 {
                    break;
                }
            }
            assert!(!to.holds());
            // The other end answers in the handshake.
            let _ = from.read(&mut bytes).or_else(blocked)?;
        }
        Ok(came)
    }

    #[test]
    fn bytes_arrive_as_they_were_plain_or_encrypted() {
        let sent: Vec<u8> = (0..3_000_000u32).flat_map(u32::to_le_bytes).collect();
        for key in [None, Some(KEY)] {
            let (mut ours, mut theirs) = pair(key, key);
            assert!(!theirs.has_spoken());
            assert!(through(&mut ours, &mut theirs, &sent).unwrap() == sent);
            assert!(through(&mut theirs, &mut ours, &sent[..100_000]).unwrap() == sent[..100_000]);
            assert!(theirs.has_spoken() && !theirs.owes());
            drop(ours);
            assert_eq!(theirs.read(&mut [0; 10]).unwrap(), 0);
        }
    }

    #[test]
    fn nobody_else_is_spoken_to() {
        for (calling, called) in [(Some(KEY), Some([8; 32])), (None, Some(KEY))] {
            let (mut ours, mut theirs) = pair(calling, called);
            assert!(
                through(&mut ours, &mut theirs, &[b'x'; 100_000]).is_err(),
                "{calling:?}"
            );
        }
    }

    #[test]
    fn what_is_heard_on_the_way_tells_nothing() {
        let (mut ours, theirs) = pair(Some(KEY), None);
        let secret = b"attack at dawn, attack at dawn, attack at dawn";
        let _ = ours.write(secret);
        let mut heard = Vec::new();
        drop(ours);
        theirs.socket().set_nonblocking(false).unwrap();
        theirs.socket().take(10_000).read_to_end(&mut heard).unwrap();
        assert!(!heard.is_empty() && !heard.windows(6).any(|window| window == b"attack"));
    }
}
