package logtest

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/outbox"
)

// soon is a delay that ends within a test, but not before its message is published, however busy the
// machine is.
const soon = 3 * time.Second

// later returns a delayed message.
func later(text string, in time.Duration) outbox.Message {
	m := msg(text)
	m.NotBefore = time.Now().Add(in)
	return m
}

// promote moves delayed messages that are due into the log.
func (r *reader) promote(limit int) (n int) {
	r.w.Helper()
	r.again(func() (err error) {
		n, err = r.Promote(r.w.ctx, limit)
		return err
	})
	return n
}

// Messages that are not due when they are published.
var delayed = []story{
	{"a delayed message is not there before its time", func(w *suite) {
		w.publish(later("a:late", time.Hour), msg("a:now"))
		r := w.reader(claim(1))
		w.same("messages", texts(r.drain()), []string{"a:now"})
		w.same("promoted", r.promote(10), 0)
		w.same("page", r.page(full).Delayed, false)
		w.same("messages", len(r.drain()), 0)
	}},
	{"statistics count delayed messages and have the time of the next one", func(w *suite) {
		r := w.reader(claim(1))
		delayed := func() []any {
			all, err := w.Operator.Stats(w.ctx, "")
			w.ok(err)
			return []any{len(all), all[0].Delayed, all[0].Pending}
		}
		w.same("none", delayed(), []any{1, int64(0), int64(0)})
		first := later("a:first", time.Hour)
		w.publish(later("a:second", 2*time.Hour), first, msg("a:now"))
		w.same("two", delayed(), []any{1, int64(2), int64(1)})
		all, err := w.Operator.Stats(w.ctx, "")
		w.ok(err)
		w.same("the next", all[0].NextAt.Sub(first.NotBefore).Abs() < time.Millisecond, true)
		w.same("messages", texts(r.drain()), []string{"a:now"})
	}},
	{"a delayed message is promoted when it is due", func(w *suite) {
		w.publish(later("a:late", soon))
		r := w.reader(claim(1))
		w.eventually("the page says that a message is due", func() bool { return r.page(full).Delayed })
		w.same("without promotion", len(r.drain()), 0)
		w.same("promoted", r.promote(10), 1)
		w.same("messages", texts(r.drain()), []string{"a:late"})
		w.same("once", []any{r.promote(10), len(r.drain()), r.page(full).Delayed}, []any{0, 0, false})
	}},
	{"a message whose time is past is not delayed", func(w *suite) {
		m := msg("a:past")
		m.NotBefore = time.Now().Add(-time.Hour)
		ancient := msg("a:ancient")
		ancient.NotBefore = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC)
		w.publish(m, ancient)
		w.same("messages", texts(w.reader(claim(1)).drain()), []string{"a:past", "a:ancient"})
	}},
	{"a message with the time 9999 is never promoted", func(w *suite) {
		m := msg("a:never")
		m.NotBefore = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
		w.publish(m)
		r := w.reader(claim(1))
		w.same("messages", len(r.drain())+r.promote(10), 0)
	}},
	{"delayed messages come in the order of their times", func(w *suite) {
		base := soon
		w.publish(later("a:3", base+30*time.Millisecond), later("a:1", base+10*time.Millisecond), later("b:2", base+20*time.Millisecond), later("a:1b", base+11*time.Millisecond))
		r := w.reader(claim(1))
		n := 0
		w.eventually("four are promoted", func() bool {
			n += r.promote(1)
			return n == 4
		})
		w.same("messages", texts(r.drain()), []string{"a:1", "a:1b", "b:2", "a:3"})
	}},
	{"a delayed message that was rolled back does not exist", func(w *suite) {
		tx := w.begin()
		w.ok(tx.Publish(w.ctx, later("a:gone", soon)))
		w.ok(tx.Rollback(w.ctx))
		w.publish(later("a:there", soon))
		r := w.reader(claim(1))
		w.eventually("one is promoted", func() bool { return r.promote(10) == 1 })
		w.same("messages", texts(r.drain()), []string{"a:there"})
	}},
	{"each range promotes its own messages, with all fields", func(w *suite) {
		left, right := keyIn(outbox.RangeOf(0, 2), 1), keyIn(outbox.RangeOf(1, 2), 2)
		m := later(left+":1", soon)
		m.Headers, m.Type, m.TraceParent = map[string]string{"a": "b"}, "type", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		w.publish(m, later(right+":1", soon))
		a, b := w.reader(unit(0, 2, 1)), w.reader(unit(1, 2, 1))
		w.eventually("one is promoted", func() bool { return a.promote(10) == 1 })
		w.same("of the other range", len(b.drain()), 0)
		rows := a.drain()
		w.same("messages", texts(rows), []string{left + ":1"})
		w.same("fields", fmt.Sprint(rows[0].Headers, rows[0].Type, rows[0].TraceParent), fmt.Sprint(m.Headers, m.Type, m.TraceParent))
		w.eventually("the other is promoted", func() bool { return b.promote(10) == 1 })
		w.same("messages", texts(b.drain()), []string{right + ":1"})
	}},
	{"a promoted message is for all subscriptions", func(w *suite) {
		other := w.reader(outbox.ClaimRequest{Subscription: "other", Instances: 1, Epoch: 1})
		w.publish(later("a:1", soon))
		r := w.reader(claim(1))
		w.eventually("one is promoted", func() bool { return r.promote(10) == 1 })
		w.same("promoted by another", other.promote(10), 0)
		w.same("messages", [][]string{texts(r.drain()), texts(other.drain())}, [][]string{{"a:1"}, {"a:1"}})
	}},
}
