// Package story runs scripts against the real program. It is testscript with commands for stories about a
// cluster, used by tests.
//
//	exits CODE cmd…            run cmd, whose exit code must be CODE
//	start NAME cmd…            start cmd; its output goes to NAME.out and NAME.err
//	signal NAME INT|TERM|HUP|KILL   send a signal
//	insist NAME INT|TERM       send a signal again and again until it has ended (at most a minute)
//	ended NAME CODE            wait for it and compare the exit code; KILL is killed by signal
//	json PATH OP VALUE …       judge the last standard output as JSON, see check
//	until cmd… -- PATH OP VALUE …  repeat cmd until its JSON is so (at most a minute)
//	prints REGEXP cmd…         repeat cmd until its standard output matches (at most a minute), as for names that a
//	                           shell completes: on a busy machine there are none
//	save NAME PATH             put a value of the last standard output into the environment
//	says FILE REGEXP           wait until a file matches (at most a minute)
//	get URL CODE [REGEXP]      ask an HTTP endpoint, until it answers with CODE (at most a minute)
//	objects NAME yes|denies|hangs   serve Google's object storage badly, at the address put into NAME:
//	                           every write is accepted, or refused, or nothing is ever answered
//	losesegment DIR TEXT       delete the segment of a queue's log with this text, in a directory of objects
//	receiver NAME              receive webhooks at the address put into NAME; a body with the word
//	                           poison is refused with 422, what is taken is a line of NAME.log
package story

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/emitd/emitd/cmd/emitd/internal/cli"
	daemonexec "github.com/emitd/emitd/daemon/exec"
)

// Main is called by TestMain. It makes the test binary run the program as well.
func Main(m testscript.TestingM) {
	daemonexec.GuardianMain() // the guardians of the stories' nodes are this binary
	testscript.Main(m, map[string]func(){"emitd": func() { os.Exit(cli.Run()) }})
}

// Run runs the scripts in dir. Each has a fresh $STORE: the result of store, or a SQLite file.
func Run(t *testing.T, dir string, store func(env *testscript.Env) string) {
	if store == nil {
		store = func(env *testscript.Env) string {
			return "sqlite://" + filepath.ToSlash(filepath.Join(env.WorkDir, "cluster.db"))
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			env.Values[processes{}] = map[string]*process{}
			env.Setenv("STORE", store(env))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "start": start, "signal": signalProcess, "insist": insist, "ended": ended,
			"json": checkJSON, "until": until, "prints": prints, "save": save, "says": printed, "get": get, "objects": objects, "receiver": receiver,
			"losesegment": loseSegment,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// timeout bounds every wait for something that should come much sooner.
const timeout = time.Minute

// eventually repeats f until it returns nil; its error says what is still missing.
func eventually(ts *testscript.TestScript, f func() error) {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			ts.Fatalf("after %v still: %v", timeout, err)
		}
	}
}

func want(ts *testscript.TestScript, neg bool, ok bool, usage string) {
	if neg || !ok {
		ts.Fatalf("usage: %s", usage)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) >= 2, "exits CODE cmd…")
	code := 0
	var failed *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &failed) {
		code = failed.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

type processes struct{}

type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

func table(ts *testscript.TestScript) map[string]*process {
	return ts.Value(processes{}).(map[string]*process)
}

func start(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) >= 2, "start NAME cmd…")
	path, err := exec.LookPath(args[1])
	if err != nil {
		path = filepath.Join(strings.Split(ts.Getenv("PATH"), string(os.PathListSeparator))[0], args[1])
	}
	p := &process{cmd: exec.CommandContext(context.Background(), path, args[2:]...), done: make(chan struct{})}
	p.cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "EMITD_CONFIG", "EMITD_STORE_URL"} {
		if v := ts.Getenv(name); v != "" {
			p.cmd.Env = append(p.cmd.Env, name+"="+v)
		}
	}
	out, err := os.Create(ts.MkAbs(args[0] + ".out"))
	ts.Check(err)
	defer out.Close()
	log, err := os.Create(ts.MkAbs(args[0] + ".err"))
	ts.Check(err)
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = out, log
	ts.Check(p.cmd.Start())
	table(ts)[args[0]] = p
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	ts.Defer(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
}

var signals = map[string]os.Signal{"INT": os.Interrupt, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "KILL": os.Kill}

func signalProcess(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) == 2, "signal NAME INT|TERM|HUP|KILL")
	ts.Check(table(ts)[args[0]].cmd.Process.Signal(signals[args[1]]))
}

func insist(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) == 2, "insist NAME INT|TERM")
	p := table(ts)[args[0]]
	eventually(ts, func() error {
		select {
		case <-p.done:
			return nil
		default:
		}
		if err := p.cmd.Process.Signal(signals[args[1]]); !errors.Is(err, os.ErrProcessDone) {
			ts.Check(err)
		}
		return fmt.Errorf("%s runs", args[0])
	})
}

func ended(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) == 2, "ended NAME CODE")
	p := table(ts)[args[0]]
	select {
	case <-p.done:
	case <-time.After(timeout):
		ts.Fatalf("%s still runs after %v", args[0], timeout)
	}
	code := strconv.Itoa(p.cmd.ProcessState.ExitCode())
	if code == "-1" {
		code = "KILL"
	}
	if code != args[1] {
		log, _ := os.ReadFile(ts.MkAbs(args[0] + ".err"))
		ts.Fatalf("%s ended with %s, want %s; it said:\n%s", args[0], code, args[1], log)
	}
}

func checkJSON(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) > 0 && len(args)%3 == 0, "json PATH OP VALUE …")
	ts.Check(check(ts.ReadFile("stdout"), args))
}

func until(ts *testscript.TestScript, neg bool, args []string) {
	split := -1
	for i, a := range args {
		if a == "--" {
			split = i
		}
	}
	want(ts, neg, split > 0 && (len(args)-split-1)%3 == 0, "until cmd… -- PATH OP VALUE …")
	eventually(ts, func() error {
		if err := ts.Exec(args[0], args[1:split]...); err != nil {
			return fmt.Errorf("%w: %s", err, ts.ReadFile("stderr"))
		}
		return check(ts.ReadFile("stdout"), args[split+1:])
	})
}

func prints(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) > 1, "prints REGEXP cmd…")
	re := regexp.MustCompile("(?m)" + args[0])
	eventually(ts, func() error {
		if err := ts.Exec(args[1], args[2:]...); err != nil {
			return fmt.Errorf("%w: %s", err, ts.ReadFile("stderr"))
		}
		if out := ts.ReadFile("stdout"); !re.MatchString(out) {
			return fmt.Errorf("the output does not match %s:\n%s", args[0], out)
		}
		return nil
	})
}

func save(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) == 2, "save NAME PATH")
	values, err := values(ts.ReadFile("stdout"), args[1])
	ts.Check(err)
	if len(values) != 1 {
		ts.Fatalf("%s has %d values", args[1], len(values))
	}
	ts.Setenv(args[0], values[0])
}

func printed(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) == 2, "says FILE REGEXP")
	re := regexp.MustCompile("(?m)" + args[1])
	eventually(ts, func() error {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		if err == nil && !re.Match(text) {
			err = fmt.Errorf("%s does not match %s:\n%s", args[0], args[1], text)
		}
		return err
	})
}

func get(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) == 2 || len(args) == 3, "get URL CODE [REGEXP]")
	eventually(ts, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, args[0], nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if strconv.Itoa(resp.StatusCode) != args[1] {
			return fmt.Errorf("%s answers %d: %s", args[0], resp.StatusCode, b)
		}
		if len(args) == 3 && !regexp.MustCompile("(?m)"+args[2]).Match(b) {
			return fmt.Errorf("%s answers %.2000s, want %s", args[0], b, args[2])
		}
		return nil
	})
}

func objects(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) == 2 && slices.Contains([]string{"yes", "denies", "hangs"}, args[1]), "objects NAME yes|denies|hangs")
	var generation atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case args[1] == "hangs":
			_, _ = io.Copy(io.Discard, r.Body) // a client that hangs up is noticed only after the body was read
			<-r.Context().Done()
		case args[1] == "denies":
			http.Error(w, `{"error":{"message":"the key of bob is not allowed to"}}`, http.StatusForbidden)
		case r.Method == http.MethodPost:
			fmt.Fprintf(w, `{"generation":"%d"}`, generation.Add(1))
		default:
			http.NotFound(w, r)
		}
	}))
	ts.Defer(s.Close)
	ts.Setenv(args[0], s.Listener.Addr().String())
}

func receiver(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) == 1, "receiver NAME")
	log, err := os.Create(ts.MkAbs(args[0] + ".log"))
	ts.Check(err)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case strings.Contains(string(body), "poison"):
			http.Error(w, "no such customer", http.StatusUnprocessableEntity)
		default:
			fmt.Fprintf(log, "%s\n", body) // one write, so that lines stay whole
		}
	}))
	ts.Defer(func() {
		s.Close()
		_ = log.Close()
	})
	ts.Setenv(args[0], s.Listener.Addr().String())
}

// check tests a JSON text by triples of path, operator and value. A path is keys and indexes joined by
// dots; * stands for every element of a list, count for its length. All values of a path must pass, and
// there must be at least one. Operators: == != > matches has (a field of that name).
func check(text string, triples []string) error {
	for i := 0; i+2 < len(triples); i += 3 {
		path, op, want := triples[i], triples[i+1], triples[i+2]
		got, err := values(text, path)
		if err != nil {
			return err
		}
		if len(got) == 0 {
			return fmt.Errorf("%s has no value in %s", path, text)
		}
		for _, g := range got {
			ok, err := compare(g, op, want)
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("%s: %s is not %s %s in %s", path, g, op, want, text)
			}
		}
	}
	return nil
}

func compare(got, op, want string) (bool, error) {
	switch op {
	case "==":
		return got == want, nil
	case "!=":
		return got != want, nil
	case "matches":
		return regexp.MatchString(want, got)
	case "has":
		var m map[string]any
		if err := json.Unmarshal([]byte(got), &m); err != nil {
			return false, err
		}
		_, ok := m[want]
		return ok, nil
	case ">":
		a, err := strconv.ParseFloat(got, 64)
		if err != nil {
			return false, err
		}
		b, err := strconv.ParseFloat(want, 64)
		return a > b, err
	}
	return false, fmt.Errorf("unknown operator %q", op)
}

// values returns the values at a path as text: strings unquoted, everything else as JSON.
func values(text, path string) ([]string, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var root any
	if err := dec.Decode(&root); err != nil {
		return nil, fmt.Errorf("not JSON: %w: %s", err, text)
	}
	at := []any{root}
	for key := range strings.SplitSeq(path, ".") {
		var next []any
		for _, v := range at {
			next = append(next, descend(v, key)...)
		}
		at = next
	}
	out := make([]string, len(at))
	for i, v := range at {
		if s, ok := v.(string); ok {
			out[i] = s
			continue
		}
		b, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		out[i] = string(b)
	}
	return out, nil
}

func descend(v any, key string) []any {
	switch v := v.(type) {
	case map[string]any:
		if key == "" {
			return []any{v}
		}
		if x, ok := v[key]; ok {
			return []any{x}
		}
	case []any:
		if key == "*" {
			return v
		}
		if key == "count" {
			return []any{json.Number(strconv.Itoa(len(v)))}
		}
		if i, err := strconv.Atoi(key); err == nil && i < len(v) {
			return []any{v[i]}
		}
	}
	return nil
}

// loseSegment deletes the only segment that contains a text.
func loseSegment(ts *testscript.TestScript, neg bool, args []string) {
	want(ts, neg, len(args) == 2, "losesegment DIR TEXT")
	var found []string
	ts.Check(filepath.WalkDir(args[0], func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(filepath.ToSlash(path), "/log/") {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(data), args[1]) {
			found = append(found, path)
		}
		return err
	}))
	if len(found) != 1 {
		ts.Fatalf("%d segments have the text %q: %q", len(found), args[1], found)
	}
	ts.Check(os.Remove(found[0]))
}
