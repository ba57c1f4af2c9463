package console

import (
	"bytes"
	"strings"
	"sync"
)

// answers keeps what a script says, and hands over each line as it comes.
type answers struct {
	line func(string)

	mu   sync.Mutex
	all  strings.Builder
	rest []byte
}

func newAnswers(line func(string)) *answers { return &answers{line: line} }

// Write implements io.Writer.
func (a *answers) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all.Write(p)
	a.rest = append(a.rest, p...)
	for {
		before, after, ok := bytes.Cut(a.rest, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		a.rest = after
		a.line(strings.TrimSpace(string(before)))
	}
}

// String returns everything that was said.
func (a *answers) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all.String()
}
