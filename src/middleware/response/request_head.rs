use http::{Extensions, HeaderMap, Method, Request, Uri, Version};

/// All of a refused request but its body, which nobody has read.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    version: Version,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> RequestHead<'a> {
    pub(in crate::middleware) fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// The request's method.
    #[must_use]
    pub fn method(&self) -> &'a Method {
        self.method
    }

    /// What it asks for.
    #[must_use]
    pub fn uri(&self) -> &'a Uri {
        self.uri
    }

    /// HTTP's version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its header fields.
    #[must_use]
    pub fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    /// What layers outside have found out.
    #[must_use]
    pub fn extensions(&self) -> &'a Extensions {
        self.extensions
    }
}
