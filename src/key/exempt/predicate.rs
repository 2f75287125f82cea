/// A predicate on requests. Closures `Fn(&Req) -> bool` implement this trait, and so do types of this module such as
/// `Paths`.
pub trait RequestPredicate<Req> {
    /// Returns whether the request matches.
    fn matches(&self, request: &Req) -> bool;
}

impl<Req, F: Fn(&Req) -> bool> RequestPredicate<Req> for F {
    fn matches(&self, request: &Req) -> bool {
        self(request)
    }
}
