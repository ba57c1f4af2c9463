package ranges

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestReplayBounds checks that a replay of a part is refused when it is too large, and that one of everything
// from a position on never is.
func TestReplayBounds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		req    outbox.ReplayRequest
		rows   int
		bytes  int64
		fits   bool
		counts int
	}{
		"as many as may be":     {outbox.ReplayRequest{Key: "k"}, ReplayRows, 1, true, ReplayRows},
		"one too many":          {outbox.ReplayRequest{Key: "k"}, ReplayRows + 9, 1, false, ReplayRows + 1},
		"too long":              {outbox.ReplayRequest{Topics: []string{"t"}}, 9, ReplayBytes / 2, false, 3},
		"everything that comes": {outbox.ReplayRequest{After: 3}, ReplayRows + 9, ReplayBytes, true, ReplayRows + 1},
	} {
		c.req.Subscription = "s"
		r, err := NewReplay(c.req)
		if err != nil {
			t.Fatal(err)
		}
		for id, more := int64(1), true; more && id <= int64(c.rows); id++ {
			more = r.Add(id, 7, c.bytes, false)
		}
		if err := r.CheckSize(); (err == nil) != c.fits || r.Counts()[outbox.Delivered] != c.counts {
			t.Errorf("%s: %v, %v", name, err, r.Counts())
		}
	}
}

// TestReplayOfWhatIsGone checks the errors of ranges of which the log has nothing.
func TestReplayOfWhatIsGone(t *testing.T) {
	t.Parallel()
	first := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	has := LogState{First: 10, End: 20, FirstAt: first, Now: first.Add(time.Hour)}
	for name, c := range map[string]struct {
		req  outbox.ReplayRequest
		e    LogState
		want string // "" = no error
	}{
		"all":                      {outbox.ReplayRequest{}, has, ""},
		"of an empty log":          {outbox.ReplayRequest{}, LogState{End: 20}, ""},
		"a range of an empty log":  {outbox.ReplayRequest{UpTo: 5}, LogState{End: 20}, "the log has no message"},
		"up to the first":          {outbox.ReplayRequest{UpTo: 10}, has, ""},
		"before the first":         {outbox.ReplayRequest{UpTo: 9}, has, "begins with message 10 of 2026-01-02T03:04:05Z"},
		"partly gone":              {outbox.ReplayRequest{After: 3, UpTo: 11}, has, ""},
		"before the first's time":  {outbox.ReplayRequest{Until: first}, has, "begins with message 10"},
		"from the future":          {outbox.ReplayRequest{Since: first.Add(2 * time.Hour)}, has, "by the log's clock it is 2026-01-02T04:04:05Z"},
		"up to the future":         {outbox.ReplayRequest{Until: first.Add(2 * time.Hour)}, has, "by the log's clock"},
		"from beyond the end":      {outbox.ReplayRequest{After: 21}, has, "the log ends at 20"},
		"up to what is not yet":    {outbox.ReplayRequest{UpTo: 21}, has, "the log ends at 20"},
		"from the end":             {outbox.ReplayRequest{After: 20}, has, ""},
		"up to a time, of nothing": {outbox.ReplayRequest{Until: first}, LogState{End: 20, Now: has.Now}, "the log has no message"},
	} {
		r := Replay{ReplayRequest: c.req}
		err := r.CheckRange(c.e)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, outbox.ErrNotFound) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
