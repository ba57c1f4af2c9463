package docs

import (
	"bytes"
	"context"
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
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/outbox/postgres"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const root = "../.."

// block is a fenced block of a page.
type block struct {
	page string
	line int
	lang string
	text string
}

func blocks(t *testing.T) []block {
	t.Helper()
	var pages []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "node_modules" {
			return fs.SkipDir
		}
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".md") {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var out []block
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var open *block
		for i, line := range strings.Split(string(text), "\n") {
			switch {
			case open == nil && (strings.HasPrefix(line, "```") || strings.TrimSpace(line) == "```sh"): // commands may be in a list
				open = &block{page: strings.TrimPrefix(page, root+"/"), line: i + 1, lang: strings.TrimPrefix(strings.TrimSpace(line), "```")}
			case open != nil && strings.TrimSpace(line) == "```":
				out = append(out, *open)
				open = nil
			case open != nil:
				open.text += line + "\n"
			}
		}
	}
	return out
}

// TestGoSnippetsAreBuilt compares each Go block, except for indentation, with the examples, which the
// build and their own tests check.
func TestGoSnippetsAreBuilt(t *testing.T) {
	t.Parallel()
	var programs string
	for _, pattern := range []string{"examples/*/*.go", "*/example*_test.go", "*/*/example*_test.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			programs += flat(string(text))
		}
	}
	found := 0
	for _, b := range blocks(t) {
		if b.lang != "go" || b.file() != "" { // a file is built where it is used, see TestCommandsRun
			continue
		}
		found++
		if !strings.Contains(programs, flat(b.text)) {
			t.Errorf("%s:%d: this snippet stands in no program under examples/ and in no example test", b.page, b.line)
		}
	}
	if found == 0 {
		t.Error("no Go snippet was found: this test looks in the wrong place")
	}
}

// TestEmbeddingIsShort checks that the README's embedding example has at most 25 lines.
func TestEmbeddingIsShort(t *testing.T) {
	t.Parallel()
	for _, b := range blocks(t) {
		if b.page == "README.md" && b.lang == "go" { // the first one
			if n := strings.Count(b.text, "\n"); n > 25 || !strings.Contains(b.text, "coordinator.New") {
				t.Errorf("%s:%d: %d lines, want at most 25 that embed a coordinator", b.page, b.line, n)
			}
			return
		}
	}
	t.Error("the README has no Go snippet")
}

// flat returns the text without indentation and empty lines.
func flat(text string) string {
	var b strings.Builder
	for _, line := range strings.Split(text, "\n") {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// TestSQLRuns runs the SQL of each page in order, in a database of its own with the outbox's tables.
func TestSQLRuns(t *testing.T) {
	t.Parallel()
	pages := map[string][]block{}
	for _, b := range blocks(t) {
		if b.lang == "sql" {
			pages[b.page] = append(pages[b.page], b)
		}
	}
	if len(pages) == 0 {
		t.Error("no SQL was found: this test looks in the wrong place")
	}
	for page, bs := range pages {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			if _, err := postgres.Migrate(t.Context(), postgres.Config{URL: url}, postgres.Version); err != nil {
				t.Fatal(err)
			}
			conn, err := pgx.Connect(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			for _, b := range bs {
				if _, err := conn.PgConn().Exec(t.Context(), b.text).ReadAll(); err != nil {
					t.Fatalf("%s:%d: %v", b.page, b.line, err)
				}
				for _, m := range role.FindAllStringSubmatch(b.text, -1) { // a role outlives its database
					defer func() {
						if _, err := conn.PgConn().Exec(context.Background(), "drop owned by "+m[1]+"; drop role "+m[1]).ReadAll(); err != nil {
							t.Error(err)
						}
					}()
				}
			}
		})
	}
}

var role = regexp.MustCompile(`(?m)^create role (\w+)`)

// elsewhere lists the beginnings of commands that CI runs itself, or that change the machine.
var elsewhere = []string{"make ", "apt-get "}

// TestCommandsRun runs the commands of each page in one folder, in order. A command that does not end
// (dev, serve) keeps running until the page ends, and must then stop cleanly. The file emitd.yaml has the
// text that the page last gave it, and so has each Go file whose first line is its name. The test provides the
// database, the receiver and the module that a page names.
func TestCommandsRun(t *testing.T) {
	t.Parallel()
	bin := filepath.Join(t.TempDir(), "emitd")
	if out, err := build(bin, "./cmd/emitd"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pages := map[string][]block{}
	for _, b := range blocks(t) {
		if b.lang == "yaml" {
			checkConfig(t, bin, b)
		}
		if !slices.Contains([]string{"sh", "console", "http"}, b.lang) && b.file() == "" {
			continue
		}
		pages[b.page] = append(pages[b.page], b)
		for _, m := range example.FindAllStringSubmatch(b.text, -1) {
			if out, err := build(filepath.Join(filepath.Dir(bin), "example-"+m[1]), "./examples/"+m[1]); err != nil {
				t.Fatalf("%s: %v\n%s", b.page, err, out)
			}
		}
	}
	for page, bs := range pages {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			if !slices.ContainsFunc(bs, func(b block) bool { return b.lang == "sh" }) {
				return
			}
			s := newSession(t, bin)
			defer s.clean(page)
			defer s.end()
			s.play(bs)
		})
	}
}

// play does what the blocks of a page show.
func (s *session) play(bs []block) {
	s.t.Helper()
	for _, b := range bs {
		switch {
		case b.file() != "":
			s.write(b)
		case b.lang == "http":
			s.receives(b)
		case b.lang == "console":
			s.transcript(b)
		case b.lang == "sh":
			for i, line := range strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n") {
				s.run(fmt.Sprintf("%s:%d", b.page, b.line+1+i), strings.TrimSpace(line))
			}
		}
	}
}

// example matches the command that starts an example program.
var example = regexp.MustCompile(`go run \./examples/(\w+)`)

func build(bin, pkg string) ([]byte, error) {
	cmd := exec.Command("go", "build", "-o", bin, pkg)
	cmd.Dir = root
	return cmd.CombinedOutput()
}

// file returns the name of the file that the block is: its first line says so, as a comment. It is empty if the block is
// no whole file.
func (b block) file() string {
	if b.lang == "yaml" && strings.HasPrefix(b.text, "# emitd.yaml") {
		return "emitd.yaml"
	}
	first, _, _ := strings.Cut(b.text, "\n")
	if name, ok := strings.CutPrefix(first, "// "); ok && b.lang == "go" && strings.HasSuffix(name, ".go") && !strings.Contains(name, " ") {
		return name
	}
	return ""
}

// billing is the address of the receiver that pages name.
const billing = "https://billing.example.org"

// checkConfig checks that a page's YAML is a valid configuration.
func checkConfig(t *testing.T, bin string, b block) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "emitd.yaml")
	text := strings.NewReplacer("/etc/emitd", credentials(t), ".emitd/tokens", filepath.Join(credentials(t), "tokens")).Replace(b.text)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(bin, "config", "check", "--config", file, "--store", "postgres://db.example.org/shop").CombinedOutput()
	if err != nil {
		t.Errorf("%s:%d: %v\n%s", b.page, b.line, err, out)
	}
}

// session plays one reader of one page.
type session struct {
	t    *testing.T
	bin  string
	dir  string
	env  []string // what was exported
	live []*testproc.Process
	away bool // the page works in a folder outside of the clone
	hook *httptest.Server
	got  chan http.Header // headers of the requests that the receiver took
}

func newSession(t *testing.T, bin string) *session {
	s := &session{t: t, bin: bin, dir: t.TempDir(), got: make(chan http.Header, 100)}
	s.hook = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || strings.Contains(string(body), `"number":0`) {
			w.WriteHeader(http.StatusBadRequest) // the pages call this a senseless message
			return
		}
		select {
		case s.got <- r.Header:
		default:
		}
	}))
	t.Cleanup(s.hook.Close)
	return s
}

// write creates the file that a page shows.
func (s *session) write(b block) {
	s.t.Helper()
	text := strings.ReplaceAll(b.text, billing, s.hook.URL)
	if err := os.WriteFile(filepath.Join(s.dir, b.file()), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// receives waits for a request with the headers of the one that the page shows.
func (s *session) receives(b block) {
	s.t.Helper()
	var got http.Header
	select {
	case got = <-s.got:
	case <-time.After(time.Minute):
		s.t.Fatalf("%s:%d: the receiver got nothing", b.page, b.line)
	}
	head, _, _ := strings.Cut(b.text, "\n\n")
	for _, line := range strings.Split(head, "\n")[1:] {
		if name, _, _ := strings.Cut(line, ":"); got.Get(name) == "" {
			s.t.Errorf("%s:%d: the request has no %s: %v", b.page, b.line, name, got)
		}
	}
}

// export sets a variable for the following commands. A database URL is replaced by one of the test's
// databases.
func (s *session) export(assignment string) {
	name, value, _ := strings.Cut(assignment, "=")
	if value = strings.Trim(value, `"`); strings.HasPrefix(value, "postgres://") {
		value = pgtest.Database(s.t)
	}
	value = strings.ReplaceAll(value, "$PWD", s.dir)
	s.env = append(s.env, name+"="+value)
}

// command returns a command of the session.
func (s *session) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.dir
	cmd.Env = append(append(os.Environ(), "PATH="+filepath.Dir(s.bin)+":"+os.Getenv("PATH")), s.env...)
	return cmd
}

func (s *session) run(at, line string) {
	s.t.Helper()
	if strings.HasPrefix(line, "# Ctrl-C") {
		s.interrupt()
	}
	if line == "" || strings.HasPrefix(line, "#") {
		return
	}
	for _, e := range elsewhere {
		if strings.HasPrefix(line+" ", e) {
			return
		}
	}
	if assignment, ok := strings.CutPrefix(line, "export "); ok {
		s.export(assignment)
		return
	}
	if s.agentCommand(line) {
		return
	}
	line = example.ReplaceAllString(strings.ReplaceAll(line, "go run ./cmd/emitd", "emitd"), "example-$1")
	stays := strings.HasPrefix(line, "emitd dev") || strings.HasPrefix(line, "emitd serve") || strings.HasPrefix(line, "./") || strings.Contains(line, " -f") || strings.Contains(line, " --watch")
	if !stays {
		s.finish(at, line)
		if strings.HasPrefix(line, "kill ") {
			s.remove()
		}
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.t.Cleanup(cancel)
	s.live = append(s.live, s.start(at, s.command(ctx, "sh", "-c", "exec "+line)))
	s.ready(at, line)
}

// start starts a command that does not outlive the test.
func (s *session) start(at string, cmd *exec.Cmd) *testproc.Process {
	s.t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	proc, err := testproc.Start(cmd)
	if err != nil {
		s.t.Fatalf("%s: %v", at, err)
	}
	return proc
}

// finish runs a command to its end. A command that uses the result of another, as $(…) shows, is retried
// for a while, because a reader would be slower. So is doctor, which warns while a busy machine is slow.
func (s *session) finish(at, line string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		cmd := s.command(ctx, "sh", "-c", line)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		proc := s.start(at, cmd)
		<-proc.Done
		err := proc.Err()
		if err == nil {
			return
		}
		again := strings.Contains(line, "$(") || strings.Contains(line, "emitd doctor")
		if !again || time.Now().After(deadline) {
			s.t.Errorf("%s: %s: %v\n%s", at, line, err, out.String())
			return
		}
	}
}

// ready waits until the started cluster has a leader.
func (s *session) ready(at, line string) {
	s.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-tick.C {
		args := []string{"status", "-o", "json"}
		if own, ok := strings.CutPrefix(line, "./"); ok { // a program of the page
			name, _, _ := strings.Cut(own, " ")
			args = append(args, "--store", "sqlite://"+filepath.Join(s.dir, name+".db"))
		} else if len(s.env) == 0 {
			args = append(args, "--store", "sqlite://"+filepath.Join(s.dir, ".emitd", "emitd.db"))
		}
		if out, err := s.command(s.t.Context(), s.bin, args...).Output(); err == nil && strings.Contains(string(out), `"term"`) && strings.Contains(string(out), `"active"`) {
			return
		}
	}
	s.t.Fatalf("%s: %s: nobody leads after a minute", at, line)
}

// clean checks what the commands have left in the folder, which stands for a clone: git must ignore all
// of it.
func (s *session) clean(page string) {
	s.t.Helper()
	if s.away {
		return // the page works in a folder of its own
	}
	rules, err := os.ReadFile(filepath.Join(root, ".gitignore"))
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, ".git-rules"), rules, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if out, err := s.command(context.Background(), "git", "init", "--quiet").CombinedOutput(); err != nil {
		s.t.Fatalf("git (apt-get install git): %v\n%s", err, out)
	}
	cmd := s.command(context.Background(), "git", "-c", "core.excludesFile=/dev/null", "ls-files", "--others", "--exclude-from=.git-rules", "--exclude=/.git-rules")
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("git: %v\n%s", err, out)
	}
	if left := strings.Fields(string(out)); len(left) > 0 {
		s.t.Errorf("%s leaves %s behind, which .gitignore does not name", page, strings.Join(left, ", "))
	}
}

// end stops what still runs, the newest first.
func (s *session) end() {
	for len(s.live) > 0 {
		s.interrupt()
	}
}

// interrupt stops the newest process that runs, as Ctrl-C does.
func (s *session) interrupt() {
	s.t.Helper()
	if len(s.live) == 0 {
		s.t.Fatal("the page presses Ctrl-C, and nothing runs")
	}
	proc := s.live[len(s.live)-1]
	s.live = s.live[:len(s.live)-1]
	proc.Signal(syscall.SIGINT)
	<-proc.Done
	if err := proc.Err(); err != nil {
		s.t.Errorf("%s: after Ctrl-C: %v", proc.Cmd, err)
	}
}
