package ranges

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/outbox"
)

// bulkRows is how many messages one transaction of a bulk change has.
const bulkRows = 1000

// InParts calls part until it has changed fewer rows than it may. The parts grow as long as they are quick, so that a
// change of many small rows needs few of them, and one of large rows keeps nobody waiting.
func InParts(part func(most int) (changed int, err error)) error {
	for most := bulkRows; ; {
		began := time.Now()
		n, err := part(most)
		if err != nil || n < most {
			return err
		}
		if time.Since(began) < quickPart {
			most *= 2
		}
	}
}

// quickPart is how long a part takes before a larger one is tried.
const quickPart = 100 * time.Millisecond

// changeable lists the kinds of messages that may become another kind, those that are meant by default first.
var changeable = map[outbox.Kind]struct{ byDefault, others []outbox.Kind }{
	outbox.Waiting: {[]outbox.Kind{outbox.Held, outbox.Dead}, []outbox.Kind{outbox.Waiting}},
	outbox.Dead:    {[]outbox.Kind{outbox.Held}, []outbox.Kind{outbox.Waiting, outbox.Behind}},
	outbox.Dropped: {[]outbox.Kind{outbox.Dead}, nil},
}

// Bulk is a change of all messages that a filter selects.
type Bulk struct {
	Filter outbox.Filter
	To     outbox.Kind
	DryRun bool
	kinds  []outbox.Kind
}

// Valid returns what is wrong with the change, or nil, and sets its defaults.
func (b *Bulk) Valid() error {
	limit := b.Filter.Limit
	f, err := ValidFilter(b.Filter)
	if err != nil {
		return err
	}
	may, known := changeable[b.To]
	switch {
	case !known:
		return fmt.Errorf("messages cannot become %q, want %q, %q or %q", b.To, outbox.Waiting, outbox.Dead, outbox.Dropped)
	case f.Subscription == "":
		return errors.New("no subscription is named")
	case f.Kind == "":
		b.kinds = may.byDefault
	case slices.Contains(may.byDefault, f.Kind), slices.Contains(may.others, f.Kind):
		b.kinds = []outbox.Kind{f.Kind}
	default:
		return fmt.Errorf("messages that are %s cannot become %s", f.Kind, b.To)
	}
	b.Filter, b.Filter.Kind, b.Filter.Limit = f, "", limit
	return nil
}

// Listed is a stored message that a filter selects.
type Listed struct {
	Seq  int64
	Kind outbox.Kind
}

// Select returns the messages that are to be changed, of those that the filter selects without its kind.
func (b *Bulk) Select(found []Listed) (chosen []Listed) {
	for _, m := range found {
		if slices.Contains(b.kinds, m.Kind) && (b.Filter.Limit == 0 || len(chosen) < b.Filter.Limit) {
			chosen = append(chosen, m)
		}
	}
	return chosen
}

// Run changes the chosen messages in parts. change returns those that it changed, because others may have
// been delivered or retried since they were chosen.
func (b *Bulk) Run(chosen []Listed, change func(seqs []int64) ([]Listed, error)) (map[outbox.Kind]int, error) {
	counts := map[outbox.Kind]int{}
	if b.DryRun {
		return count(counts, chosen), nil
	}
	for part := range slices.Chunk(chosen, bulkRows) {
		done, err := change(SeqsOf(part))
		if err != nil {
			return counts, err
		}
		count(counts, done)
	}
	return counts, nil
}

func count(counts map[outbox.Kind]int, messages []Listed) map[outbox.Kind]int {
	for _, m := range messages {
		counts[m.Kind]++
	}
	return counts
}

// SeqsOf returns the numbers of messages, of the given kinds or of all.
func SeqsOf(messages []Listed, kinds ...outbox.Kind) []int64 {
	seqs := []int64{}
	for _, m := range messages {
		if len(kinds) == 0 || slices.Contains(kinds, m.Kind) {
			seqs = append(seqs, m.Seq)
		}
	}
	return seqs
}
