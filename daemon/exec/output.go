package exec

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
)

// Bounds of what is taken over from a command.
const (
	maxOutput = 4 << 10 // bytes of a logged line; the rest of it is dropped
	maxTail   = 1 << 10 // bytes of stderr in an error
)

// output logs and records what a command writes, line by line.
type output struct {
	stream   string
	log      *slog.Logger
	record   func(stream, text string, truncated bool) // may be nil
	progress func()
	tail     []byte // the last maxTail bytes or so, whole lines
	givenUp  bool   // reading was given up, because a process still holds the other end
}

// drain reads r to its end. It never stops reading before, so only the logger can slow the command
// down.
func (o *output) drain(r io.Reader) {
	in := bufio.NewReaderSize(r, maxOutput)
	for {
		line, err := in.ReadSlice('\n')
		truncated := errors.Is(err, bufio.ErrBufferFull)
		if len(line) > 0 {
			o.line(strings.TrimRight(string(line), "\r\n"), truncated)
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = in.ReadSlice('\n')
		}
		if err != nil {
			o.givenUp = errors.Is(err, os.ErrDeadlineExceeded)
			return
		}
	}
}

func (o *output) line(text string, truncated bool) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if truncated {
		o.log.LogAttrs(context.Background(), slog.LevelInfo, text, slog.Bool("cut", true))
	} else {
		o.log.LogAttrs(context.Background(), slog.LevelInfo, text)
	}
	if o.record != nil {
		o.record(o.stream, text, truncated)
	}
	o.tail = append(append(o.tail, text...), '\n')
	if over := len(o.tail) - maxTail; over > 0 {
		o.tail = o.tail[over:]
		for len(o.tail) > 0 && o.tail[0]&0xC0 == 0x80 { // do not begin in the middle of a character
			o.tail = o.tail[1:]
		}
	}
	o.progress()
}

// last returns the tail as text for an error.
func (o *output) last() string { return strings.TrimSpace(string(o.tail)) }
