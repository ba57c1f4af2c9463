package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// agentCommand carries out what a page does in a folder of its own that the shell of the test cannot: it changes the
// folder, and it provides emitd as a program and as a module. It reports whether it knows the command.
func (s *session) agentCommand(line string) bool {
	s.t.Helper()
	folder, cd := strings.CutPrefix(line, "cd ")
	switch {
	case cd:
		s.dir, s.away = filepath.Join(s.dir, folder), true
	case strings.HasPrefix(line, "go install github.com/emitd/emitd/cmd/emitd@"): // it is in the path
	case strings.HasPrefix(line, "go mod init "):
		s.away = true
		return false
	case line == "go mod tidy":
		s.require()
	default:
		return false
	}
	return true
}

// require makes the page's module require this repository, with the versions and sums of this repository, so that
// nothing is fetched.
func (s *session) require() {
	s.t.Helper()
	here, err := filepath.Abs(root)
	if err != nil {
		s.t.Fatal(err)
	}
	own, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		s.t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(s.dir, "go.mod"))
	if err != nil {
		s.t.Fatal(err)
	}
	_, versions, _ := strings.Cut(string(own), "\nrequire ")
	text := fmt.Sprintf("%s\nrequire github.com/emitd/emitd v0.0.0\n\nreplace github.com/emitd/emitd => %s\n\nrequire %s", mod, here, versions)
	if err := os.WriteFile(filepath.Join(s.dir, "go.mod"), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err == nil {
		err = os.WriteFile(filepath.Join(s.dir, "go.sum"), sums, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// remove waits for the end of the process that the page has killed, which no Ctrl-C will end.
func (s *session) remove() {
	s.t.Helper()
	ended := time.After(time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		for i, p := range s.live {
			select {
			case <-p.Done:
				s.live = append(s.live[:i:i], s.live[i+1:]...)
				return
			default:
			}
		}
		select {
		case <-tick.C:
		case <-ended:
			s.t.Fatal("the page kills a process, and none has ended")
		}
	}
}
