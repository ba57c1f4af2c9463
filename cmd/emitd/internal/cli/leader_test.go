package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// moody answers each Submit with the next of its answers, and after the last one with that.
type moody struct {
	storage.Store
	ids     map[string]int // how often each command was submitted
	answers []func(ctx context.Context, c storage.Command) (*storage.Command, error)
}

func (m *moody) Submit(ctx context.Context, c storage.Command) (*storage.Command, error) {
	m.ids[c.ID]++
	answer := m.answers[0]
	if len(m.answers) > 1 {
		m.answers = m.answers[1:]
	}
	return answer(ctx, c)
}

func waits(_ context.Context, c storage.Command) (*storage.Command, error) { return &c, nil }

func done(_ context.Context, c storage.Command) (*storage.Command, error) {
	c.Result, c.DoneAt = "done", time.Now()
	return &c, nil
}

func hangs(ctx context.Context, _ storage.Command) (*storage.Command, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func down(context.Context, storage.Command) (*storage.Command, error) {
	return nil, fmt.Errorf("submit: %w: the connection broke", storage.ErrUnavailable)
}

func denied(context.Context, storage.Command) (*storage.Command, error) {
	return nil, errors.New("submit: permission denied")
}

// TestSubmit checks that a command is submitted again under its ID until its outcome is known or the time
// is over, and that the result says what is known.
func TestSubmit(t *testing.T) {
	t.Parallel()
	type answers = []func(context.Context, storage.Command) (*storage.Command, error)
	for name, tt := range map[string]struct {
		answers answers
		code    fault.Code // "" means no fault
		text    string
		filed   int // at least this often
	}{
		"done at once":                      {answers{done}, "", "", 1},
		"done later":                        {answers{waits, waits, done}, "", "", 3},
		"the answer was lost":               {answers{down, done}, "", "", 2},
		"lost in the middle":                {answers{waits, down, denied, done}, "", "", 4},
		"never done":                        {answers{waits}, fault.NotAnswered, "command c1 is stored, but not carried out yet", 50},
		"never done, and no answer at last": {answers{waits, hangs}, fault.NotAnswered, "command c1 is stored", 2},
		"never an answer":                   {answers{hangs}, fault.CommandUnknown, "whether command c1 was carried out: the store did not answer in time", 1},
		"down from the beginning":           {answers{down}, fault.CommandUnknown, "whether command c1 was carried out: store unreachable: submit:", 50},
		"down after it was filed":           {answers{waits, down}, fault.CommandUnknown, "the connection broke", 50},
		"refused":                           {answers{denied}, fault.Internal, "store the command: submit: permission denied", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				store := &moody{ids: map[string]int{}, answers: tt.answers}
				a := &app{Streams: Streams{Out: &out}, output: "name"}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				err := a.submit(ctx, &cluster{store: &backend.Store{Store: store}, snap: &daemon.Snapshot{}}, &view.Leader{}, storage.Command{ID: "c1"})
				if tt.code == "" && (err != nil || out.String() != "c1\n") {
					t.Errorf("error %v, it said %q", err, out.String())
				}
				if f := fault.Of(err); tt.code != "" && (err == nil || f[0].Code != tt.code || !strings.Contains(f[0].What, tt.text)) {
					t.Errorf("error %v, want %s with %q", err, tt.code, tt.text)
				}
				if len(store.ids) != 1 || store.ids["c1"] < tt.filed {
					t.Errorf("filed %v, want c1 alone and %d times", store.ids, tt.filed)
				}
			})
		})
	}
}
