package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/runlog"
	"github.com/emitd/emitd/internal/admin/view"
)

// outputNode serves the output of a unit as the test says.
func outputNode(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s.URL
}

// outputPage is an answer with one line of run 1.
func outputPage(w http.ResponseWriter, line int64, text string, more bool) {
	_ = json.NewEncoder(w).Encode(runlog.Page{
		Run:   runlog.Run{Unit: "acme:talk/0", Node: "a", Generation: 1, Number: 1},
		Lines: []runlog.Line{{Number: line, Text: text}}, More: more, Next: runlog.Cursor{Generation: 1, Run: 1, Line: line},
	})
}

// outputOf returns a reader of the output that nodes at the addresses serve.
func outputOf(out io.Writer, timeout time.Duration, addresses ...string) *outputReader {
	a := &app{Streams: Streams{Out: out, Err: io.Discard}, output: string(view.TableFormat), timeout: timeout}
	return &outputReader{a: a, q: &queues{a: a}, unit: "acme:talk/0", follow: true, addresses: addresses}
}

// TestOutputOfAnotherNode checks that a node that never answers leaves time for the others, and is the last to be called
// from then on.
func TestOutputOfAnotherNode(t *testing.T) {
	t.Parallel()
	silent := outputNode(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	works := outputNode(t, func(w http.ResponseWriter, _ *http.Request) { outputPage(w, 1, "hello", false) })
	for _, wait := range []string{"", "10ms"} {
		r := outputOf(io.Discard, 2*time.Second, silent, works)
		v := r.values(nil)
		if wait != "" {
			v.Set("wait", wait)
		}
		page, err := r.get(t.Context(), v)
		if err != nil || len(page.Lines) != 1 || !slices.Equal(r.addresses, []string{works, silent}) {
			t.Errorf("wait %q: %+v, %v, addresses %q", wait, page, err, r.addresses)
		}
	}
}

// TestOutputOfNewNodes checks that following finds nodes that have come since it began, when none of the others is there.
func TestOutputOfNewNodes(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	gone := httptest.NewServer(nil)
	gone.Close()
	fresh := outputNode(t, func(w http.ResponseWriter, _ *http.Request) { outputPage(w, 1, "hello", false); cancel() })
	var out bytes.Buffer
	r := outputOf(&out, time.Minute, gone.URL)
	r.find = func(context.Context) ([]string, error) { return []string{fresh}, nil }
	_, failed := r.get(ctx, r.values(nil))
	if failed == nil {
		t.Fatal("a closed server answers")
	}
	within, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	if err := r.goOn(within, runlog.Cursor{}, failed); err != nil || ctx.Err() == nil {
		t.Errorf("%v; printed %q", err, out.String())
	}
}

// TestOutputGoesOnWhereItWas checks that a failure of a later page does not make following begin anew.
func TestOutputGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls atomic.Int32
	addr := outputNode(t, func(w http.ResponseWriter, r *http.Request) {
		call := calls.Add(1)
		switch after := r.URL.Query().Get("after"); {
		case call == 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		case after == "":
			outputPage(w, 1, "first", true)
		case after == "1.1.1":
			outputPage(w, 2, "second", false)
		default:
			cancel()
			outputPage(w, 3, "third", false)
		}
	})
	var out bytes.Buffer
	r := outputOf(&out, time.Minute)
	r.q.address = addr
	r.a.Environ = []string{}
	r.a.flags = map[string]*flagValue{"config": {}}
	if err := r.read(ctx); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, "first") != 1 || strings.Count(text, "second") != 1 {
		t.Errorf("printed %q, want each line once", text)
	}
}
