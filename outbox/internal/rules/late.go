package rules

// Late is a row of the cursors that holds the beginning of a log that is too large.
type Late struct {
	Subscription string
	Lo           int
	Messages     int64 // that it has not delivered there; counting may stop somewhere
}

// BySubscription adds up the rows of each subscription, which stand together.
func BySubscription(rows []Late) (out []Late) {
	for _, r := range rows {
		if n := len(out); n > 0 && out[n-1].Subscription == r.Subscription {
			out[n-1].Messages += r.Messages
			continue
		}
		out = append(out, r)
	}
	return out
}
