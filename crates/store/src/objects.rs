//! `s3://BUCKET/PREFIX`, `gs://…`, `az://…`: object stores of clouds, and servers that speak as they do.
//!
//! The library is asynchronous. Here one thread at a time drives it for all that wait, in calls that block.

use std::future::Future;
use std::str::FromStr;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig,
};
use resurgo_wire::text::one_line;

use crate::error::{Error, Kind};
use crate::name;
use crate::place::{Entry, MOST_BYTES, Place};

/// How long a request is repeated, and the pauses between.
const PATIENCE: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(10);
const TRIES: usize = 10;
/// Time for one request.
const REQUEST: Duration = Duration::from_secs(120);
/// Larger objects go in parts of this size.
const PART: usize = 16 << 20;
/// Characters of the library's words about an error.
const MOST_SAID: usize = 400;

/// A bucket, or what is below a prefix of it.
pub struct Objects {
    shown: String,
    prefix: Path,
    store: Box<dyn ObjectStore>,
    runtime: tokio::runtime::Runtime,
}

/// TLS by ring, as everywhere here.
fn choose_tls() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Another choice made before is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
}

/// Variables with their values.
pub type Variables = Vec<(String, String)>;

/// Plain HTTP only where the user has asked for that.
fn is_plain(names: &[&str], given: &Variables) -> bool {
    let value = |name: &&str| match given.iter().find(|(known, _)| known == *name) {
        Some((_, value)) => Some(value.clone()),
        None => std::env::var(name).ok(),
    };
    names.iter().filter_map(value).any(|value| value.starts_with("http://"))
}

/// The setting of the library that a variable has, if its name begins with `prefix`.
fn setting<K: FromStr>(prefix: &str, name: &str) -> Option<K> {
    let is_one = name.starts_with(prefix);
    is_one.then(|| name.to_ascii_lowercase().parse().ok()).flatten()
}

/// The settings that these variables have.
fn settings<'a, K: FromStr>(prefix: &'a str, given: &'a Variables) -> impl Iterator<Item = (K, &'a String)> {
    given
        .iter()
        .filter_map(move |(name, value)| Some((setting(prefix, name)?, value)))
}

/// This process's variables about the object store at `address`: where it is, and the credentials.
pub fn variables(address: &str) -> Variables {
    let is_one = |name: &str| match address.split_once("://") {
        Some(("s3", _)) => setting::<AmazonS3ConfigKey>("AWS_", name).is_some(),
        Some(("gs", _)) => setting::<GoogleConfigKey>("GOOGLE_", name).is_some(),
        Some(("az", _)) => setting::<AzureConfigKey>("AZURE_", name).is_some(),
        _ => false,
    };
    let all = std::env::vars_os();
    let texts = all.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    texts.filter(|(name, _)| is_one(name)).collect()
}

/// `given`: variables of another process. They come before this one's.
fn built(scheme: &str, bucket: &str, given: &Variables) -> Result<Box<dyn ObjectStore>, object_store::Error> {
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: FIRST_PAUSE,
            max_backoff: LAST_PAUSE,
            base: 2.0,
        },
        max_retries: TRIES,
        retry_timeout: PATIENCE,
    };
    let options = |variables: &[&str]| {
        let options = ClientOptions::new().with_timeout(REQUEST);
        options.with_allow_http(is_plain(variables, given))
    };
    Ok(match scheme {
        "s3" => {
            let options = options(&["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"]);
            let own = AmazonS3Builder::from_env().with_bucket_name(bucket);
            let builder = settings("AWS_", given).fold(own, |builder, (key, value)| builder.with_config(key, value));
            Box::new(builder.with_client_options(options).with_retry(retry).build()?)
        }
        "gs" => {
            let options = options(&["GOOGLE_BASE_URL", "GOOGLE_STORAGE_BASE_URL"]);
            let own = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            let builder = settings("GOOGLE_", given).fold(own, |builder, (key, value)| builder.with_config(key, value));
            Box::new(builder.with_client_options(options).with_retry(retry).build()?)
        }
        _ => {
            let options = options(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]);
            let own = MicrosoftAzureBuilder::from_env().with_container_name(bucket);
            let builder = settings("AZURE_", given).fold(own, |builder, (key, value)| builder.with_config(key, value));
            Box::new(builder.with_client_options(options).with_retry(retry).build()?)
        }
    })
}

/// What an error means. `is_object`: an object may be missing; otherwise it is the bucket.
fn kind(error: &object_store::Error, is_object: bool) -> Kind {
    let said = one_line(&error.to_string());
    let no_bucket = ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"];
    let is_bucket = no_bucket.iter().any(|word| said.contains(word));
    let said: String = said.chars().take(MOST_SAID).collect();
    match error {
        object_store::Error::NotFound { .. } if is_object && !is_bucket => Kind::Missing,
        object_store::Error::NotFound { .. } => Kind::NoPlace(said),
        _ if is_bucket => Kind::NoPlace(said),
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            Kind::NoRights(said)
        }
        object_store::Error::UnknownConfigurationKey { .. } => Kind::NoPlace(said),
        _ => Kind::Unreachable(said),
    }
}

impl Objects {
    /// A place by its address. Credentials and the rest come from variables that are given, then from the environment, and
    /// then from the machine's role.
    ///
    /// # Errors
    /// Something necessary is not there. Nothing is asked yet.
    pub fn open(address: &str, given: &Variables) -> Result<Objects, Error> {
        choose_tls();
        let failed = |why: String| Error::new(address, "", Kind::NoPlace(why));
        let (scheme, rest) = address.split_once("://").unwrap_or_default();
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let store = built(scheme, bucket, given).map_err(|error| failed(one_line(&error.to_string())))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Objects {
            shown: address.to_string(),
            prefix: Path::parse(prefix).map_err(|error| failed(error.to_string()))?,
            store,
            runtime: runtime.map_err(|error| failed(error.to_string()))?,
        })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn wait<R>(
        &self,
        name: &str,
        is_object: bool,
        work: impl Future<Output = Result<R, object_store::Error>>,
    ) -> Result<R, Error> {
        let done = self.runtime.block_on(work);
        done.map_err(|error| Error::new(&self.shown, name, kind(&error, is_object)))
    }

    async fn put_parts(&self, path: &Path, bytes: &[u8]) -> Result<(), object_store::Error> {
        let mut upload = self.store.put_multipart(path).await?;
        let done = async {
            for part in bytes.chunks(PART) {
                upload.put_part(PutPayload::from(part.to_vec())).await?;
            }
            upload.complete().await.map(drop)
        }
        .await;
        if done.is_err() {
            // What stays is for the bucket's rules about unfinished uploads.
            let _ = upload.abort().await;
        }
        done
    }
}

impl Place for Objects {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.path(name);
        match bytes.len() > PART {
            true => self.wait(name, false, self.put_parts(&path, bytes)),
            false => {
                let put = self.store.put(&path, PutPayload::from(bytes.to_vec()));
                self.wait(name, false, put).map(drop)
            }
        }
    }

    fn settle(&self, _: &str) -> Result<(), Error> {
        Ok(())
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, Error> {
        let path = self.path(name);
        let got = self.wait(name, true, async {
            let got = self.store.get(&path).await?;
            match got.meta.size > MOST_BYTES {
                true => Ok(Err(got.meta.size)),
                false => got.bytes().await.map(Ok),
            }
        })?;
        let most = MOST_BYTES;
        got.map(Vec::from)
            .map_err(|bytes| Error::new(&self.shown, name, Kind::TooLarge { bytes, most }))
    }

    fn has(&self, name: &str) -> Result<bool, Error> {
        let path = self.path(name);
        match self.wait(name, true, self.store.head(&path)) {
            Ok(_) => Ok(true),
            Err(error) if error.is_missing() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn list(&self, folder: &str) -> Result<Vec<Entry>, Error> {
        let path = self.path(folder);
        let listed = self.wait(folder, false, self.store.list_with_delimiter(Some(&path)))?;
        let jobs = listed
            .common_prefixes
            .iter()
            .map(|path| (path, 0, SystemTime::UNIX_EPOCH));
        let objects = listed
            .objects
            .iter()
            .map(|object| (&object.location, object.size, object.last_modified.into()));
        let all: Vec<(&Path, u64, SystemTime)> = match folder {
            "" => jobs.collect(),
            _ => objects.collect(),
        };
        let entries = all.into_iter().filter_map(|(path, bytes, modified)| {
            let name = path.filename().filter(|name| name::is_plain(name))?.to_string();
            Some(Entry { name, bytes, modified })
        });
        Ok(entries.collect())
    }

    fn delete(&self, name: &str) -> Result<(), Error> {
        let path = self.path(name);
        match self.wait(name, true, self.store.delete(&path)) {
            Err(error) if !error.is_missing() => Err(error),
            _ => Ok(()),
        }
    }

    fn clear(&self, _: &str, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn large_objects_go_in_parts_and_come_back_whole() {
        let objects = Objects {
            shown: "s3://bucket/some".to_string(),
            prefix: Path::from("some"),
            store: Box::new(InMemory::new()),
            runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
        };
        for length in [PART, PART + 1, 2 * PART, 2 * PART + 3] {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 7 + at / PART) as u8).collect();
            objects.put("job/large", &bytes).unwrap();
            assert!(objects.get("job/large").unwrap() == bytes, "{length}");
            let listed = objects.list("job").unwrap();
            assert_eq!((listed.len(), listed[0].bytes), (1, length as u64));
        }
        objects.delete("job/large").unwrap();
        assert!(objects.get("job/large").unwrap_err().is_missing());
    }
}
