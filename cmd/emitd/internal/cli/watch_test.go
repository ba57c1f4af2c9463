package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/terminal"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// reads returns a read that gives the results one after the other, and ends the watch in place of a further one.
func reads(a *app, stop func(), results ...error) func() error {
	n := 0
	return func() error {
		if n++; n > len(results) {
			stop()
			return context.Canceled
		}
		if err := results[n-1]; err != nil {
			return err
		}
		whole := map[string]int{"read": n}
		return a.print(data{whole: whole, names: []string{"n"}, table: func(w io.Writer, _ bool) error {
			_, err := fmt.Fprintf(w, "READ\n%d\n", n)
			return err
		}})
	}
}

// TestWatch checks what a watch that is not on a terminal appends, what it reports, and what ends it.
func TestWatch(t *testing.T) {
	t.Parallel()
	away := fault.New(fault.Unreachable, "store unreachable: nobody listens")
	gone := fault.New(fault.NoDaemon, "there is no daemon acme:x")
	usage := fault.New(fault.Usage, "a key is unknown")
	for name, tt := range map[string]struct {
		format    view.Format
		reads     []error
		out, talk string
		err       error
	}{
		"a table": {
			view.TableFormat,
			[]error{nil, nil},
			"2000-01-01T00:00:00Z\nREAD\n1\n\n2000-01-01T00:00:02Z\nREAD\n2\n\n", "", nil,
		},
		"one document per line":     {view.JSONFormat, []error{nil, nil}, "{\"read\":1}\n{\"read\":2}\n", "", nil},
		"documents of YAML":         {view.YAMLFormat, []error{nil, nil}, "---\nread: 1\n---\nread: 2\n", "", nil},
		"names":                     {view.NameFormat, []error{nil, nil}, "n\nn\n", "", nil},
		"a store that is away":      {view.NameFormat, []error{away, away, nil, nil}, "n\nn\n", "E5101: store unreachable: nobody listens; trying again every 2s\nreading works again\n", nil},
		"another error":             {view.NameFormat, []error{nil, gone, away, nil}, "n\nn\n", "E2201: there is no daemon acme:x; trying again every 2s\nE5101: store unreachable: nobody listens; trying again every 2s\nreading works again\n", nil},
		"wrong from the beginning":  {view.NameFormat, []error{gone}, "", "", gone},
		"wrong after it was away":   {view.NameFormat, []error{away, gone, nil}, "n\n", "E5101: store unreachable: nobody listens; trying again every 2s\nE2201: there is no daemon acme:x; trying again every 2s\nreading works again\n", nil},
		"usage that became a fault": {view.NameFormat, []error{nil, usage}, "n\n", "", usage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var out, talk bytes.Buffer
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				a := &app{Streams: Streams{Out: &out, Err: &talk}, output: string(tt.format)}
				w := &watch{app: a, every: 2 * time.Second}
				err := w.run(ctx, reads(a, cancel, tt.reads...))
				want := strings.NewReplacer("E5101", string(fault.Unreachable), "E2201", string(fault.NoDaemon)).Replace(tt.talk)
				if out.String() != tt.out || talk.String() != want || err != tt.err { //nolint:errorlint // the same one
					t.Errorf("it wrote %q, said %q, ended with %v", out.String(), talk.String(), err)
				}
				if a.Out != &out || a.Err != &talk || a.watching != nil {
					t.Error("the streams are not what they were before")
				}
			})
		})
	}
}

// TestWatchOnTerminal checks the frames on a terminal: what the last read that succeeded has shown stays while reads
// fail, and its age is shown.
func TestWatchOnTerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out, talk bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a := &app{Streams: Streams{Out: &out, Err: &talk}, output: "table", secrets: []string{"s3cret"}}
		w := &watch{
			app: a, every: 2 * time.Second, title: "emitd x", painter: terminal.Painter{Out: &out},
			size: func() terminal.Size { return terminal.Size{Columns: 60, Rows: 9} },
		}
		wrong := fault.New(fault.Unreachable, "store unreachable:\x1b[2J s3cret")
		read := reads(a, cancel, nil, wrong, wrong, nil)
		err := w.run(ctx, func() error {
			a.message("a hint\x1b[2J")
			return read()
		})
		if err != nil || talk.Len() > 0 {
			t.Errorf("error %v, standard error %q", err, talk.String())
		}
		got := strings.NewReplacer("\x1b[K\r\n", "\n", "\x1b[J", "--\n", "\x1b[", "^").Replace(out.String())
		const want = `emitd x, every 2s: 2000-01-01 00:00:00Z

READ
1
a hint?[2J
--
^5A` + "\r" + `emitd x, every 2s: 2000-01-01 00:00:02Z
! E5101: store unreachable:?[2J ***
! what follows is 2.0s old

READ
1
a hint?[2J
--
^7A` + "\r" + `emitd x, every 2s: 2000-01-01 00:00:04Z
! E5101: store unreachable:?[2J ***
! what follows is 4.0s old

READ
1
a hint?[2J
--
^7A` + "\r" + `emitd x, every 2s: 2000-01-01 00:00:06Z

READ
4
a hint?[2J
--
`
		if got != strings.ReplaceAll(want, "E5101", string(fault.Unreachable)) {
			t.Errorf("got:\n%s", got)
		}
	})
}
