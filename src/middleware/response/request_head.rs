use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

/// A rejected request without its body, which has not been read.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    version: Version,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    pub(in crate::middleware) fn new<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// Returns the request's method.
    #[must_use]
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// Returns the request's URI.
    #[must_use]
    pub fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// Returns the request's HTTP version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the request's header fields.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// Returns the request's extensions, such as those that outer layers have inserted.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }
}
