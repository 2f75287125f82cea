//! Reads the files of limits again when they change.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use metrics::counter;

use crate::config::{self, ConfigError};
use crate::rules::Rules;
use crate::service::Service;

/// The interval at which the files are read and compared. Unlike events of the file system, the comparison also notices
/// files that were replaced in a mounted volume.
const INTERVAL: Duration = Duration::from_secs(1);

/// A file with the limits of one domain, or a directory of such files whose names end with `.yaml` or `.yml`.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    loaded: Option<Texts>,
}

/// The names and the texts of the files, in the order of their names, or the reason why the files cannot be read.
type Texts = Result<Vec<(String, String)>, String>;

impl Source {
    /// Creates a source. Nothing is read yet.
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), loaded: None }
    }

    /// Reads the files, and sets the limits of the service if a file has changed. Returns whether a file has changed.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no file, if a file cannot be read, or if a file contains a mistake. The service
    /// then keeps its limits. The same mistake is reported only once.
    pub(crate) fn load(&mut self, service: &Service) -> Result<bool, ConfigError> {
        let texts = texts(&self.path);
        self.apply(texts, service)
    }

    fn apply(&mut self, texts: Texts, service: &Service) -> Result<bool, ConfigError> {
        if self.loaded.as_ref() == Some(&texts) {
            return Ok(false);
        }
        let name = self.path.display().to_string();
        let rules = match &texts {
            Ok(texts) => parse(&name, texts, service),
            Err(error) => Err(ConfigError::new(&name, error)),
        };
        self.loaded = Some(texts);
        let result = if rules.is_ok() { "success" } else { "error" };
        counter!("ratelimit_config_loads_total", "result" => result).increment(1);
        service.set_rules(rules?);
        Ok(true)
    }

    /// Loads the files whenever they change, for ever. Prints mistakes.
    pub(crate) async fn watch(mut self, service: Service) {
        let mut before = None;
        loop {
            tokio::time::sleep(INTERVAL).await;
            let path = self.path.clone();
            // Reading may block, so it happens on a thread for blocking work.
            let Ok(read) = tokio::task::spawn_blocking(move || texts(&path)).await else { continue };
            // The files are loaded only if two readings in a row are the same, because a file may still be being
            // written.
            if before.as_ref() != Some(&read) {
                before = Some(read);
                continue;
            }
            match self.apply(read, &service) {
                Ok(false) => {}
                Ok(true) => println!("{} limits loaded", service.rules().count()),
                Err(error) => eprintln!("token_server: the limits stay as they are: {error}"),
            }
        }
    }
}

fn parse(name: &str, texts: &[(String, String)], service: &Service) -> Result<Rules, ConfigError> {
    if texts.is_empty() {
        return Err(ConfigError::new(name, "there is no file that ends with .yaml or .yml"));
    }
    let files = texts.iter().map(|(file, text)| Ok((file.clone(), config::parse(file, text)?)));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    Rules::new(&files, service.backend(), &service.rules())
}

fn texts(path: &Path) -> Texts {
    read(path).map_err(|error| error.to_string())
}

fn read(path: &Path) -> io::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let file = entry?.path();
            let is_yaml = file.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
            if is_yaml && file.is_file() {
                files.push(file);
            }
        }
    } else {
        files.push(path.to_owned());
    }
    files.sort();
    files.into_iter().map(|file| Ok((file.display().to_string(), fs::read_to_string(&file)?))).collect()
}
