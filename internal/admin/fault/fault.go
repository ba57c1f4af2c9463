// Package fault is how emitd tells a person what went wrong: what happened, why it matters, and what to
// do.
//
//	error E1203: emitd.yaml:4:3: unknown key "heartbeat_intervall"     what: observed, expected
//	    3 |   lease_duration: 60s                                      where, for config files
//	  > 4 |   heartbeat_intervall: 15s
//	      |   ^ did you mean "heartbeat_interval"?
//	  nothing was started.                                             why it matters
//	  do: correct the key; all keys: emitd config show                 what to do now
//
// Every fault has a code that never changes its meaning. All codes are in one catalogue ([All]): E1xxx
// config and usage, E2xxx coordination, E3xxx objects and queue, E4xxx outbox, E5xxx store. The code
// decides the exit code of the program. The same text goes to the terminal and, with the code as an
// attribute, to the log.
//
// A fault never contains a secret: callers redact URLs, and [Write] replaces the secrets that it is given
// in texts from elsewhere.
package fault

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Code identifies a kind of fault: E and four digits.
type Code string

// Fault is an error for a person.
type Fault struct {
	Code Code
	// What happened, in one line: what was observed and what was expected.
	What string
	// Excerpt shows the place in a config file, in lines without indentation.
	Excerpt string
	// Why it matters, or what was not done; may be empty.
	Why string
	// Do says what to do now; if it is empty, the catalogue's advice is used.
	Do string
	// Err is the cause, if there is one.
	Err error
}

// New returns a fault with a formatted What. An argument for %w becomes its cause.
func New(code Code, format string, args ...any) *Fault {
	err := fmt.Errorf(format, args...)
	return &Fault{Code: code, What: err.Error(), Err: errors.Unwrap(err)}
}

// Because sets Why.
func (f *Fault) Because(format string, args ...any) *Fault {
	f.Why = fmt.Sprintf(format, args...)
	return f
}

// Hint sets Do, which replaces the catalogue's advice.
func (f *Fault) Hint(format string, args ...any) *Fault {
	f.Do = fmt.Sprintf(format, args...)
	return f
}

// Error returns code and What, for logs and tests.
func (f *Fault) Error() string { return string(f.Code) + ": " + f.What }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// Advice returns what to do.
func (f *Fault) Advice() string {
	if f.Do != "" {
		return f.Do
	}
	e, _ := Lookup(f.Code)
	return e.Do
}

// List holds several faults that were found at once.
type List []*Fault

// Error joins the faults' texts.
func (l List) Error() string {
	lines := make([]string, len(l))
	for i, f := range l {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the faults.
func (l List) Unwrap() []error {
	out := make([]error, len(l))
	for i, f := range l {
		out[i] = f
	}
	return out
}

// Err returns the list as an error, nil if it is empty.
func (l List) Err() error {
	if len(l) == 0 {
		return nil
	}
	return l
}

// Of returns the faults in err. [From] turns any other error into a fault.
func Of(err error) List {
	var list List
	if errors.As(err, &list) {
		return list
	}
	var one *Fault
	if errors.As(err, &one) {
		return List{one}
	}
	if err == nil {
		return nil
	}
	return List{From(err)}
}

// Exit returns the exit code for err: the catalogue's of its first fault, 0 for nil.
func Exit(err error) int {
	all := Of(err)
	if len(all) == 0 {
		return ExitOK
	}
	if e, ok := Lookup(all[0].Code); ok {
		return e.Exit
	}
	return ExitFailed
}

// Write prints err for a person. Advice that several consecutive faults share is printed once. The
// secrets are replaced in every text.
func Write(w io.Writer, err error, secrets ...string) {
	var b strings.Builder
	all := Of(err)
	for i, f := range all {
		fmt.Fprintf(&b, "error %s: %s\n", f.Code, f.What)
		b.WriteString(indent(f.Excerpt, ""))
		b.WriteString(indent(f.Why, "  "))
		do := f.Advice()
		if again := i+1 < len(all) && all[i+1].Advice() == do; do != "" && !again {
			b.WriteString(indent("do: "+do, "  "))
		}
	}
	io.WriteString(w, Redact(b.String(), secrets...))
}

// Redact replaces each secret in text by ***.
func Redact(text string, secrets ...string) string {
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "***")
		}
	}
	return text
}

func indent(text, by string) string {
	if text == "" {
		return ""
	}
	return by + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+by) + "\n"
}
