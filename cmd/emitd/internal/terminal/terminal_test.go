package terminal

import (
	"slices"
	"strings"
	"testing"
)

// TestFit checks that a frame never has more lines or characters than its terminal.
func TestFit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		frame []string
		size  Size
		want  []string
	}{
		"fits":                     {[]string{"ab", "", "c"}, Size{2, 4}, []string{"ab", "", "c"}},
		"too wide":                 {[]string{"abcde", "äöüx"}, Size{3, 10}, []string{"abc", "de", "äöü", "x"}},
		"too high":                 {[]string{"a", "b", "c", "d"}, Size{20, 4}, []string{"a", "b", "… 2 more lines"}},
		"too high by folding":      {[]string{"abcdef", "g"}, Size{3, 3}, []string{"abc", "… 2"}},
		"a terminal of one line":   {[]string{"a", "b", "c"}, Size{20, 1}, []string{"a", "… 2 more lines"}},
		"nothing":                  {nil, Size{3, 3}, nil},
		"a size that is not known": {[]string{"abcdef"}, Size{}, []string{"abcdef"}},
	} {
		if got := Fit(Text(tt.frame...), tt.size); !slices.Equal(got, Text(tt.want...)) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestPaint checks what is sent: a frame is drawn over the last one, line by line, and everything is cleared only when
// the size has changed.
func TestPaint(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := Painter{Out: &out}
	for _, step := range []struct {
		frame []string
		size  Size
		want  string
	}{
		{[]string{"one", "two"}, Size{9, 9}, "one\x1b[K\r\ntwo\x1b[K\r\n\x1b[J"},
		{[]string{"three"}, Size{9, 9}, "\x1b[2A\rthree\x1b[K\r\n\x1b[J"},
		{[]string{"four"}, Size{3, 9}, "\x1b[H\x1b[2Jfou\x1b[K\r\nr\x1b[K\r\n\x1b[J"},
		{nil, Size{3, 9}, "\x1b[2A\r\x1b[J"},
	} {
		out.Reset()
		if err := p.Paint(Text(step.frame...), step.size); err != nil || out.String() != step.want {
			t.Errorf("%q in %v: %q, %v, want %q", step.frame, step.size, out.String(), err, step.want)
		}
	}
}

// TestPaintWhole checks that a frame of the whole terminal starts at its top, and that styles end with their line.
func TestPaintWhole(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := Painter{Out: &out, Whole: true, Colours: true}
	for range 2 {
		out.Reset()
		frame := []Line{{"abcd", Alarm}, {"e", Plain}}
		const want = "\x1b[H\x1b[31mabc\x1b[0m\x1b[K\r\n\x1b[31md\x1b[0m\x1b[K\r\ne\x1b[K\r\n\x1b[J"
		if err := p.Paint(frame, Size{3, 9}); err != nil || out.String() != want {
			t.Errorf("%q, %v, want %q", out.String(), err, want)
		}
	}
}

// TestKeys checks the keys of what terminals send.
func TestKeys(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string][]Key{
		"q":                {"q"},
		"qp":               {"q", "p"},
		"ä":                {"ä"},
		"\x1b[A\x1bOB\t":   {Up, Down, Tab},
		"\x1b[C\x1b[D":     {Right, Left},
		"\x1b[5~\x1b[6~":   {PageUp, PageDown},
		"\x1b[H\x1b[4~":    {Home, End},
		"\x1b[Z":           {BackTab},
		"\x1b":             {Escape},
		"\x03":             {Interrupt},
		"\x1b[1;5Cq":       {"q"}, // Ctrl-Right is not known
		"\x1b[200~a":       {"a"},
		"\x1b[":            nil,
		"\x01\x7f\r\xffa":  {"a"},
		"":                 nil,
		"\x1b[A\x1b[1;2Aj": {Up, "j"},
	} {
		if got := Keys(sent); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", sent, got, want)
		}
	}
}

// TestReadKeys checks that keys arrive in order, that the end of the input closes the channel, and that nobody needs
// to receive them.
func TestReadKeys(t *testing.T) {
	t.Parallel()
	var got []Key
	for k := range ReadKeys(strings.NewReader("q\x1b[A"), nil) {
		got = append(got, k)
	}
	if !slices.Equal(got, []Key{"q", Up}) {
		t.Errorf("got %q", got)
	}
	done := make(chan struct{})
	close(done)
	for k := range ReadKeys(strings.NewReader(strings.Repeat("k", 9)), done) {
		_ = k // one or more may be sent while both are possible
	}
}
