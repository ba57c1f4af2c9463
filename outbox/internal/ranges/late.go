package ranges

// LaggingRow is a cursor row that keeps the log from deleting its oldest messages, although the log is too
// large.
type LaggingRow struct {
	Subscription string
	Lo           int
	Messages     int64 // messages that the row has not passed in the part to be deleted; counting may stop at a limit
}

// Pending estimates how many messages of a cursor row are pending, given that it has counted some of them in
// the ids after after and up to last, and that rest ids follow.
func Pending(counted, after, last, rest int64) int64 {
	return counted + int64(float64(max(rest, 0))*float64(counted)/float64(max(last-after, counted)))
}

// BySubscription adds up the rows of each subscription. Rows of one subscription must be adjacent.
func BySubscription(rows []LaggingRow) (out []LaggingRow) {
	for _, r := range rows {
		if n := len(out); n > 0 && out[n-1].Subscription == r.Subscription {
			out[n-1].Messages += r.Messages
			continue
		}
		out = append(out, r)
	}
	return out
}
