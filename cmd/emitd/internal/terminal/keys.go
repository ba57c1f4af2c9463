package terminal

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Key is a key that was pressed: a printable character, or one of the constants.
type Key string

// The keys without a printable character.
const (
	Up        Key = "up"
	Down      Key = "down"
	Left      Key = "left"
	Right     Key = "right"
	PageUp    Key = "page up"
	PageDown  Key = "page down"
	Home      Key = "home"
	End       Key = "end"
	Tab       Key = "tab"
	BackTab   Key = "back tab"
	Escape    Key = "escape"
	Interrupt Key = "interrupt" // Ctrl-C, which is a key like any other in the raw mode
)

// sequences are the control sequences of keys. Terminals send the second form of the arrows in their application
// mode.
var sequences = []struct {
	text string
	key  Key
}{
	{"\x1b[A", Up},
	{"\x1b[B", Down},
	{"\x1b[C", Right},
	{"\x1b[D", Left},
	{"\x1bOA", Up},
	{"\x1bOB", Down},
	{"\x1bOC", Right},
	{"\x1bOD", Left},
	{"\x1b[5~", PageUp},
	{"\x1b[6~", PageDown},
	{"\x1b[H", Home},
	{"\x1b[F", End},
	{"\x1b[1~", Home},
	{"\x1b[4~", End},
	{"\x1b[Z", BackTab},
	{"\t", Tab},
	{"\x03", Interrupt},
}

// Keys returns the keys that a terminal has sent in one piece. What is not known is left out.
func Keys(sent string) []Key {
	var out []Key
next:
	for sent != "" {
		for _, s := range sequences {
			if rest, ok := strings.CutPrefix(sent, s.text); ok {
				out, sent = append(out, s.key), rest
				continue next
			}
		}
		if sent[0] == '\x1b' {
			if sent == "\x1b" {
				return append(out, Escape)
			}
			sent = afterSequence(sent)
			continue
		}
		r, n := utf8.DecodeRuneInString(sent)
		if sent = sent[n:]; r >= ' ' && r != utf8.RuneError && r != '\x7f' {
			out = append(out, Key(r))
		}
	}
	return out
}

// afterSequence returns what follows a control sequence that is not known. Such a sequence ends with a letter or a
// tilde.
func afterSequence(sent string) string {
	rest := strings.TrimPrefix(sent[1:], "[")
	i := strings.IndexFunc(rest, func(r rune) bool { return r == '~' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' })
	if i < 0 {
		return ""
	}
	return rest[i+1:]
}

// ReadKeys sends the keys of a terminal on a channel, which it closes when the terminal is gone. Nothing can end a
// read of a terminal, so its goroutine lives as long as the program, or until the next key after done was closed.
func ReadKeys(in io.Reader, done <-chan struct{}) <-chan Key {
	keys := make(chan Key)
	go func() {
		defer close(keys)
		b := make([]byte, 256)
		for {
			n, err := in.Read(b)
			for _, k := range Keys(string(b[:n])) {
				select {
				case keys <- k:
				case <-done:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	return keys
}
