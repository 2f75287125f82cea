use super::Decision;

impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let reported = |decision: &Self| {
            let spans = (decision.retry_after(), decision.next(), decision.reset_after(), decision.delay);
            let kind = (
                decision.is_allowed(),
                decision.is_closed(),
                decision.is_table_full(),
                decision.is_queue_full(),
                decision.is_locked_out(),
                decision.never_fits(),
            );
            (kind, decision.index, decision.limit, decision.remaining, spans)
        };
        reported(self) == reported(other)
    }
}

impl Eq for Decision {}
