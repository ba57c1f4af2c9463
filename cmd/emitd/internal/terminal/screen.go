package terminal

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/term"
)

// The control sequences of a terminal that is taken over.
const (
	enter = "\x1b[?1049h\x1b[?25l" // the alternate screen, and no cursor
	leave = "\x1b[?25h\x1b[?1049l"
)

// ErrNone means that a stream is not a terminal that can be drawn on.
var ErrNone = errors.New("not a terminal")

// Screen is a terminal that the program has for itself: what was on it comes back in the end, and each key
// arrives when it is pressed.
type Screen struct {
	in    descriptor
	out   io.Writer
	saved *term.State
}

// TakeOver takes over the terminal of a program. The caller must call Restore, also after a panic.
func TakeOver(in any, out io.Writer) (*Screen, error) {
	input, ok := in.(descriptor)
	if !ok || !term.IsTerminal(int(input.Fd())) {
		return nil, fmt.Errorf("standard input: %w", ErrNone)
	}
	if !IsTerminal(out) {
		return nil, fmt.Errorf("standard output: %w", ErrNone)
	}
	saved, err := term.MakeRaw(int(input.Fd()))
	if err != nil {
		return nil, fmt.Errorf("set the mode of the terminal: %w", err)
	}
	s := &Screen{in: input, out: out, saved: saved}
	if _, err := io.WriteString(out, enter); err != nil {
		return nil, errors.Join(err, s.Restore())
	}
	return s, nil
}

// Restore gives the terminal back as it was.
func (s *Screen) Restore() error {
	_, err := io.WriteString(s.out, leave)
	return errors.Join(err, term.Restore(int(s.in.Fd()), s.saved))
}
