/// Tells some requests from others: a closure `Fn(&Req) -> bool`, or one of those that this module has.
pub trait RequestPredicate<Req> {
    /// Whether the request is meant.
    fn matches(&self, request: &Req) -> bool;
}

impl<Req, F: Fn(&Req) -> bool> RequestPredicate<Req> for F {
    fn matches(&self, request: &Req) -> bool {
        self(request)
    }
}
