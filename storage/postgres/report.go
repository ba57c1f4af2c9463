package postgres

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// stepInput is one element of the input of report.sql.
type stepInput struct {
	Ord        int    `json:"ord"`
	Daemon     string `json:"daemon"`
	Index      int    `json:"index"`
	Generation int64  `json:"generation"`
	Step       string `json:"step"`
	Reason     string `json:"reason"`
	Error      string `json:"error"`
	Failures   int    `json:"failures"`
	Retry      int64  `json:"retry"`   // microseconds
	Embargo    int64  `json:"embargo"` // microseconds
	// Acknowledge is in nanoseconds, like its column.
	Acknowledge int64 `json:"acknowledge"`
}

// Report implements [storage.Store].
func (s *Store) Report(ctx context.Context, r storage.Report) ([]storage.Outcome, error) {
	out := make([]storage.Outcome, len(r.Units))
	input := make([]stepInput, len(r.Units))
	for i, u := range r.Units {
		out[i].Unit = u.Unit
		name, index := columns(u.Unit)
		input[i] = stepInput{
			Ord: i, Daemon: name, Index: index, Generation: u.Generation, Step: string(u.Step),
			Reason: cleanText(u.Reason), Error: cleanText(u.Error), Failures: u.Failures, Retry: micros(u.RetryIn), Embargo: micros(u.Embargo),
			Acknowledge: int64(u.AcknowledgeTimeout),
		}
	}
	same, admitted := false, false
	guard := s.sameStore(r.StoreID, r.Node.Incarnation)
	err := s.call(ctx, "report", writing, func(m *message) {
		m.query(isSame(&same), "same", guard...)
		m.count(func(n int64) { admitted = n == 1 }, "report_row", inc(r.Node), number(r.Seq), r.HighestGeneration)
		if len(input) > 0 {
			m.do("units_lock", encode(input))
		}
		change, finish := m.outcomes(out)
		for part := range splitByKey(input, func(in stepInput) daemon.Unit { return rules.FromColumns(in.Daemon, in.Index) }) {
			change("report", inc(r.Node), encode(part))
		}
		finish()
	})
	switch {
	case err != nil:
	case !same:
		err = storage.ErrStoreChanged
	case !admitted:
		err = s.refused(ctx, r.Node, storage.IDInUseError{}, func(present, _ bool) bool { return present })
	}
	if err != nil {
		return nil, s.fail(attempt("report of", r.Node), err)
	}
	return out, nil
}

// sameStore returns the arguments of same.sql for a call of a process that was decided from a store.
func (s *Store) sameStore(id string, caller node.Incarnation) []any {
	return []any{cleanText(id), s.heads()[id], cleanText(string(caller)), s.newestAnswered(caller).seqIn(id)}
}

// isSame reads the answer of same.sql.
func isSame(same *bool) func(*composite) error {
	return func(c *composite) error {
		*same = c.text() == "same"
		return nil
	}
}

// outcomes returns how to append a statement that takes steps, and what to call after the last one. The answers of many
// steps are large, and are sent after the commit: the rows as these steps have left them, whatever came later. The session
// keeps them until then. That is within one message, in which no pooler gives the session to anybody else.
func (m *message) outcomes(out []storage.Outcome) (change func(name string, args ...any), finish func()) {
	if len(out) <= fewRows {
		return func(name string, args ...any) { m.query(outcomes(out), name, args...) }, func() {}
	}
	m.do("outcomes_forget")
	change = func(name string, args ...any) { m.do(name+keptSuffix, args...) }
	return change, func() {
		m.commit()
		m.query(func(c *composite) error {
			row := c.row()
			return cmp.Or(outcomes(out)(row), row.err)
		}, "outcomes_kept")
		m.do("outcomes_forget")
	}
}

// outcomes reads the outcomes of steps: ord, applied, the row. It ignores the columns after these.
func outcomes(out []storage.Outcome) func(*composite) error {
	return func(c *composite) error {
		ord, applied := c.int(), c.bool()
		if ord < 0 || ord >= int64(len(out)) {
			return errRow
		}
		unit := c.row()
		record := unit.record()
		out[ord] = storage.Outcome{Unit: record.Unit, Applied: applied, Record: record}
		return unit.err
	}
}

// splitByKey cuts a list, in order, into batches in which no key occurs twice, because one statement
// changes a row only once.
func splitByKey[T any, K comparable](list []T, key func(T) K) func(yield func([]T) bool) {
	return func(yield func([]T) bool) {
		seen := map[K]bool{}
		from := 0
		for i, item := range list {
			k := key(item)
			if seen[k] {
				if !yield(list[from:i]) {
					return
				}
				from = i
				clear(seen)
			}
			seen[k] = true
		}
		if from < len(list) {
			yield(list[from:])
		}
	}
}

// encode makes the input of json_to_recordset.
func encode(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("postgres: inputs hold plain values only: " + err.Error())
	}
	return string(text)
}

// array makes the value of a text[] of names, as text: the simple protocol has no types. Names are
// UUIDs, or made up by tests; whatever they contain is quoted.
func array[T ~string](names []T) string {
	out := make([]byte, 0, 2+len(names)*40)
	out = append(out, '{')
	for i, name := range names {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '"')
		for _, c := range []byte(cleanText(string(name))) {
			if c == '"' || c == '\\' {
				out = append(out, '\\')
			}
			out = append(out, c)
		}
		out = append(out, '"')
	}
	return string(append(out, '}'))
}
