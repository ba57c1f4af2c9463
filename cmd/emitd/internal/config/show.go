package config

import (
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/emitd/emitd/cmd/emitd/internal/fault"
)

// Setting is one line of what is in force.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
	// Overrides are the weaker sources that say something else, strongest first.
	Overrides []Origin `json:"overrides,omitempty"`
	Note      string   `json:"note,omitempty"`
}

// Settings returns every setting in force with its origin, without secrets.
func (l *Loaded) Settings() []Setting {
	var out []Setting
	v := reflect.ValueOf(l.Config)
	for _, k := range Keys() {
		if k.Path == execPath {
			out = append(out, l.execSettings()...)
			continue
		}
		s := l.setting(k.Path, v.FieldByIndex(k.index))
		if strings.HasPrefix(k.Path, "queue.") && l.Objects.URL == "" && l.origin(k.Path).Layer != FromDefault {
			s.Note = "not used: objects.url names no object store, so there are no queues"
		}
		out = append(out, s)
	}
	return out
}

const execPath = "daemons.exec"

func (l *Loaded) setting(path string, v reflect.Value) Setting {
	s := Setting{Key: path, Value: showPath(path, v), Origin: l.origin(path).String()}
	all := l.origins[path]
	for _, o := range slices.Backward(all[:max(len(all)-1, 0)]) {
		if o.Text != s.Value && o.Layer != FromDefault {
			s.Overrides = append(s.Overrides, o)
		}
	}
	return s
}

// execSettings lists what each exec daemon sets.
func (l *Loaded) execSettings() []Setting {
	if len(l.Daemons.Exec) == 0 {
		return []Setting{l.setting(execPath, reflect.ValueOf(l.Daemons.Exec))}
	}
	var out []Setting
	for i, e := range l.Daemons.Exec {
		v := reflect.ValueOf(e)
		for _, k := range ItemKeys() {
			if f := v.FieldByIndex(k.index); !f.IsZero() {
				s := l.setting(join(item(execPath, i), k.Path), f)
				s.Origin = l.origin(item(execPath, i), s.Key).String()
				out = append(out, s)
			}
		}
	}
	return out
}

// OriginOf returns where the setting's value came from.
func (l *Loaded) OriginOf(path string) Origin { return l.origin(path) }

// origin returns where the last of the paths that is known came from.
func (l *Loaded) origin(paths ...string) Origin {
	o := Origin{Layer: FromDefault}
	for _, p := range paths {
		if all := l.origins[p]; len(all) > 0 {
			o = all[len(all)-1]
		}
	}
	return o
}

// Notes lists what is set and not used by this version.
func (l *Loaded) Notes() []string {
	var out []string
	for _, s := range l.Settings() {
		if s.Note != "" {
			out = append(out, fmt.Sprintf("%s (%s) is %s", s.Key, s.Origin, s.Note))
		}
	}
	return out
}

// Secrets returns the texts that must not be shown: passwords of URLs and the values given to
// exec daemons.
func (l *Loaded) Secrets() []string {
	out := append(urlSecrets(l.Store.URL), urlSecrets(l.Objects.URL)...)
	for _, e := range l.Daemons.Exec {
		for _, v := range e.Env {
			if len(v) >= shortestSecret {
				out = append(out, v)
			}
		}
	}
	return out
}

// secretParams are the URL parameters that hold secrets.
var secretParams = []string{"password", "sslpassword", "passfile", "secret", "secret_key", "secret_access_key", "access_token", "token"}

func urlSecrets(text string) []string {
	u, err := url.Parse(text)
	if err != nil {
		return nil
	}
	var out []string
	if p, ok := u.User.Password(); ok {
		raw := strings.TrimPrefix(strings.TrimPrefix(u.User.String(), url.User(u.User.Username()).String()), ":")
		out = append(out, p, raw)
	}
	for name, values := range u.Query() {
		if slices.Contains(secretParams, strings.ToLower(name)) {
			for _, v := range values {
				out = append(out, v, url.QueryEscape(v))
			}
		}
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

// RedactURL returns the URL with passwords replaced by ***; a text that is no URL is shown up to
// its scheme only.
func RedactURL(text string) string {
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" {
		scheme, _, ok := strings.Cut(text, "://")
		if !ok || len(scheme) > 10 {
			return "***"
		}
		return scheme + "://***"
	}
	q := u.Query()
	secret := false
	if _, ok := u.User.Password(); ok {
		u.User, secret = url.UserPassword(u.User.Username(), "***"), true
	}
	for name := range q {
		if slices.Contains(secretParams, strings.ToLower(name)) {
			q.Set(name, "***")
			u.RawQuery, secret = q.Encode(), true
		}
	}
	if !secret {
		return text
	}
	return strings.NewReplacer("%2A%2A%2A", "***").Replace(u.String())
}

// showPath returns the value as people write it, without secrets.
func showPath(path string, v reflect.Value) string {
	switch tagAt(path) {
	case "url":
		return RedactURL(v.String())
	case "all":
		names := sortedKeys(v.Interface().(map[string]string))
		for i, n := range names {
			names[i] = n + ": ***"
		}
		return "{" + strings.Join(names, ", ") + "}"
	}
	return show(v)
}

// tagAt returns the secret tag of the setting.
func tagAt(path string) string {
	t := reflect.TypeFor[Config]()
	if rest, ok := strings.CutPrefix(path, execPath+"["); ok {
		t = reflect.TypeFor[Exec]()
		_, path, _ = strings.Cut(rest, "].")
	}
	var f reflect.StructField
	for part := range strings.SplitSeq(path, ".") {
		var ok bool
		if t == nil || t.Kind() != reflect.Struct {
			return ""
		}
		if f, ok = field(t, part); !ok {
			return ""
		}
		t = f.Type
	}
	return f.Tag.Get("secret")
}

func show(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case []string:
		parts := make([]string, len(x))
		for i, s := range x {
			parts[i] = quoteIfNeeded(s)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]string:
		names := sortedKeys(x)
		for i, n := range names {
			names[i] = n + ": " + quoteIfNeeded(x[n])
		}
		return "{" + strings.Join(names, ", ") + "}"
	case []Exec:
		ids := make([]string, len(x))
		for i, e := range x {
			ids[i] = quoteIfNeeded(e.ID)
		}
		return "[" + strings.Join(ids, ", ") + "]"
	case Duration:
		return x.String()
	}
	return fmt.Sprint(v.Interface())
}

// quoteIfNeeded quotes text that would read as something else inside a list or map.
func quoteIfNeeded(s string) string {
	if s == "" || strings.ContainsAny(s, " ,:[]{}\"'#\n\t") {
		return strconv.Quote(s)
	}
	return s
}

// Redact replaces the configuration's secrets in text.
func (l *Loaded) Redact(text string) string { return fault.Redact(text, l.Secrets()...) }
