// Package telemetry sets up the program's log, metrics and traces.
//
// The libraries use only the OpenTelemetry API and log/slog; the SDK and the exporters are here. Metrics
// are always served on the listener's /metrics. Beyond that the OTEL_* variables of the OpenTelemetry
// specification are honoured unchanged, with two differences:
//
//   - Nothing is exported unless it is requested. Without OTEL_TRACES_EXPORTER and without an
//     OTEL_EXPORTER_OTLP_*ENDPOINT no collector is used (the specification's default would be one on
//     localhost). The same holds for metrics and logs.
//   - OTEL_METRICS_EXPORTER=prometheus opens no second port, because /metrics serves it.
//
// A log line is text on a terminal and otherwise one JSON object, on standard error. Known secrets are
// replaced in every line and in what is exported. The level of the log holds for both.
package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strconv"
	"time"

	"github.com/lmittmann/tint"

	"github.com/emitd/emitd/internal/admin/fault"
)

// LogOptions configure the log's format.
type LogOptions struct {
	Level   *slog.LevelVar
	Format  string // text, json, auto
	TTY     bool   // decides what auto means
	Colour  bool
	Secrets []string
}

// NewLog returns a handler that writes to w.
func NewLog(w io.Writer, o LogOptions) slog.Handler {
	if len(o.Secrets) > 0 {
		w = redactor{w, o.Secrets}
	}
	if o.Format == "text" || o.Format == "auto" && o.TTY {
		return redacted(tint.NewTextHandler(w, &tint.Options{Level: o.Level, NoColor: !o.Colour, TimeFormat: "15:04:05.000", ReplaceAttr: units}), o.Secrets)
	}
	return redacted(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: o.Level, ReplaceAttr: readable}), o.Secrets)
}

// units formats durations with their unit and few digits, because a number of nanoseconds is hard to
// read. It also covers durations in a list and named duration types.
func units(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		return slog.String(a.Key, unit(a.Value.Duration()))
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case []time.Duration:
			out := make([]string, len(v))
			for i, d := range v {
				out[i] = unit(d)
			}
			return slog.Any(a.Key, out)
		case *time.Duration:
			if v != nil {
				return slog.String(a.Key, unit(*v))
			}
		case fmt.Stringer:
			if r := reflect.ValueOf(v); r.Kind() == reflect.Int64 {
				return slog.String(a.Key, v.String())
			}
		}
	}
	return a
}

func unit(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d.Abs() >= 10*unit {
			d = d.Round(unit / 10)
			break
		}
	}
	return d.String()
}

// changed passes on every record with other attributes, and another message.
type changed struct {
	slog.Handler
	message func(string) string
	attr    func(slog.Attr) slog.Attr // that is no group; its value is resolved
}

// Handle implements [slog.Handler].
func (c changed) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, r.Level, c.message(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(c.change(a))
		return true
	})
	return c.Handler.Handle(ctx, out)
}

// WithAttrs implements [slog.Handler].
func (c changed) WithAttrs(as []slog.Attr) slog.Handler {
	out := make([]slog.Attr, len(as))
	for i, a := range as {
		out[i] = c.change(a)
	}
	return changed{c.Handler.WithAttrs(out), c.message, c.attr}
}

// WithGroup implements [slog.Handler].
func (c changed) WithGroup(name string) slog.Handler {
	return changed{c.Handler.WithGroup(name), c.message, c.attr}
}

// change changes an attribute, or those of a group.
func (c changed) change(a slog.Attr) slog.Attr {
	if a.Value = a.Value.Resolve(); a.Value.Kind() != slog.KindGroup {
		return c.attr(a)
	}
	var out []slog.Attr
	for _, b := range a.Value.Group() {
		out = append(out, c.change(b))
	}
	return slog.Attr{Key: a.Key, Value: slog.GroupValue(out...)}
}

// withUnits formats durations with units, for handlers that do not call units.
func withUnits(h slog.Handler) slog.Handler {
	return changed{h, func(m string) string { return m }, func(a slog.Attr) slog.Attr { return units(nil, a) }}
}

// redaction returns a function that replaces secrets. A text may have a secret in quotes already, with its special
// characters escaped, so that form is replaced as well.
func redaction(secrets []string) func(string) string {
	var all []string
	for _, s := range secrets {
		quoted := strconv.Quote(s)
		all = append(all, s, quoted[1:len(quoted)-1])
	}
	return func(text string) string { return fault.Redact(text, all...) }
}

// redacted replaces secrets before a handler formats a record, because formats escape characters: pa"ss is pa\"ss in
// JSON.
func redacted(h slog.Handler, secrets []string) slog.Handler {
	if len(secrets) == 0 {
		return h
	}
	redact := redaction(secrets)
	return changed{h, redact, func(a slog.Attr) slog.Attr {
		var text string
		switch v := a.Value.Any().(type) {
		case string:
			text = v
		case []byte:
			text = string(v)
		default:
			if a.Value.Kind() != slog.KindAny {
				return a
			}
			text = fmt.Sprintf("%+v", v)
		}
		if clean := redact(text); clean != text {
			a.Value = slog.StringValue(clean)
		}
		return a
	}}
}

// readable formats durations with units, and times as everywhere else.
func readable(groups []string, a slog.Attr) slog.Attr {
	a = units(groups, a)
	if len(groups) == 0 && a.Key == slog.TimeKey && a.Value.Kind() == slog.KindTime {
		return slog.String(slog.TimeKey, a.Value.Time().UTC().Format(time.RFC3339Nano))
	}
	return a
}

// Level parses a level of the configuration.
func Level(text string) *slog.LevelVar {
	v := new(slog.LevelVar)
	_ = v.UnmarshalText([]byte(text)) // the configuration accepts only known words
	return v
}

// redactor replaces secrets in the output of handlers, which write one whole line at a time. It finds those that a
// handler has got from inside an attribute's value, where redacted does not look.
type redactor struct {
	w       io.Writer
	secrets []string
}

func (r redactor) Write(line []byte) (int, error) {
	if _, err := io.WriteString(r.w, fault.Redact(string(line), r.secrets...)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// coded adds an error's code to the record, so that the log shows it as the command line does.
type coded struct {
	slog.Handler
	code func(error) string
}

// WithCodes returns a handler that adds the code of the attribute error, if code returns one.
func WithCodes(h slog.Handler, code func(error) string) slog.Handler { return coded{h, code} }

func (c coded) Handle(ctx context.Context, r slog.Record) error {
	found := ""
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && a.Key == "error" {
			found = c.code(err)
		}
		return found == ""
	})
	if found != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("code", found))
	}
	return c.Handler.Handle(ctx, r)
}

func (c coded) WithAttrs(as []slog.Attr) slog.Handler { return coded{c.Handler.WithAttrs(as), c.code} }

func (c coded) WithGroup(name string) slog.Handler { return coded{c.Handler.WithGroup(name), c.code} }

// both passes every record to two handlers. The first one decides which levels there are.
type both [2]slog.Handler

func (b both) Enabled(ctx context.Context, l slog.Level) bool { return b[0].Enabled(ctx, l) }

func (b both) Handle(ctx context.Context, r slog.Record) error {
	var first error
	for _, h := range b {
		if h.Enabled(ctx, r.Level) {
			if err := h.Handle(ctx, r.Clone()); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

func (b both) WithAttrs(as []slog.Attr) slog.Handler {
	return both{b[0].WithAttrs(as), b[1].WithAttrs(as)}
}

func (b both) WithGroup(name string) slog.Handler {
	return both{b[0].WithGroup(name), b[1].WithGroup(name)}
}
