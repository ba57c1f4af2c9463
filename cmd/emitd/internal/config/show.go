package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/emitd/emitd/internal/address"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox/sink"
)

// Setting is one effective setting.
type Setting struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Origin string `json:"origin"`
	// Overrides lists the weaker sources with other values, strongest first.
	Overrides []Origin `json:"overrides,omitempty"`
	Note      string   `json:"note,omitempty"`
}

// Settings returns every effective setting with its origin, without secrets.
func (l *Loaded) Settings() []Setting {
	var out []Setting
	v := reflect.ValueOf(l.Config)
	for _, k := range Keys() {
		if _, list := blocks[k.Path]; list {
			out = append(out, l.blockSettings(k.Path, v.FieldByIndex(k.index))...)
			continue
		}
		s := l.setting(k.Path, v.FieldByIndex(k.index))
		s.Note = l.whyUnused(k.Path)
		out = append(out, s)
	}
	return out
}

// whyUnused says why a setting has no effect; "" if it has one.
func (l *Loaded) whyUnused(path string) string {
	if l.origin(path).Layer == FromDefault {
		return ""
	}
	switch {
	case (strings.HasPrefix(path, "queue.") || strings.HasPrefix(path, "objects.")) && l.Objects.URL == "":
		return "not used: objects.url is not set, so this node serves no queues"
	case slices.Contains([]string{"outbox.max_connections", "outbox.retention", "outbox.dead_retention", "outbox.max_retained", "outbox.on_lag"}, path) && !l.HasOutbox():
		return "not used: there is neither outbox.url nor a subscription, so this node has no outbox"
	case (path == "api.proxies" || path == "api.user_header") && (l.API.TokensFile == "" || l.API.UserHeader == "" || len(l.API.Proxies) == 0):
		return "not used: users of a proxy need all of api.tokens_file, api.proxies and api.user_header"
	}
	return ""
}

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

// blockSettings returns the settings of each block of a list.
func (l *Loaded) blockSettings(path string, list reflect.Value) []Setting {
	if list.Len() == 0 {
		return []Setting{l.setting(path, list)}
	}
	var out []Setting
	for i := range list.Len() {
		block := item(path, i)
		walk(list.Index(i), block, func(path string, v reflect.Value) {
			s := l.setting(path, v)
			s.Origin = l.origin(block, join(block, "sink"), path).String()
			out = append(out, s)
		})
	}
	return out
}

// walk visits the fields that are set in a block, with their paths.
func walk(v reflect.Value, path string, visit func(path string, v reflect.Value)) {
	for _, f := range fields(v.Type()) {
		at, to := join(path, keyOf(f)), v.FieldByIndex(f.Index)
		if to.IsZero() {
			continue
		}
		if s, ok := to.Interface().(*Sink); ok {
			visit(join(at, "kind"), reflect.ValueOf(s.Kind))
			walk(reflect.ValueOf(s.Settings).Elem(), at, visit)
			continue
		}
		switch to.Kind() {
		case reflect.Pointer:
			walk(to.Elem(), at, visit)
		case reflect.Struct:
			walk(to, at, visit)
		default:
			visit(at, to)
		}
	}
}

// OriginOf returns the origin of the setting's value.
func (l *Loaded) OriginOf(path string) Origin { return l.origin(path) }

// origin returns the origin of the last of the paths that has one.
func (l *Loaded) origin(paths ...string) Origin {
	o := Origin{Layer: FromDefault}
	for _, p := range paths {
		if all := l.origins[p]; len(all) > 0 {
			o = all[len(all)-1]
		}
	}
	return o
}

// Notes lists the settings that have no effect in this configuration.
func (l *Loaded) Notes() []string {
	var out []string
	for _, s := range l.Settings() {
		if s.Note != "" {
			out = append(out, fmt.Sprintf("%s (%s) is %s", s.Key, s.Origin, s.Note))
		}
	}
	return out
}

// Secrets returns the texts that must not be shown: passwords in URLs, values given to exec daemons, and
// the credentials and signing keys of sinks. The longest is first: another may be a part of it, and would leave the rest.
func (l *Loaded) Secrets() []string {
	out := slices.Concat(urlSecrets(l.Store.URL), urlSecrets(l.Objects.URL), urlSecrets(l.Outbox.URL))
	var long []string
	for _, e := range l.Daemons.Exec {
		long = slices.AppendSeq(long, maps.Values(e.Env))
	}
	for _, s := range l.Outbox.Subscriptions {
		walk(reflect.ValueOf(s), "", func(path string, v reflect.Value) {
			if strings.HasSuffix(path, ".url") {
				out = append(out, addressSecrets(v.String())...)
				return
			}
			switch x := v.Interface().(type) {
			case sink.Secret:
				long = append(long, secretParts(x)...)
			case []sink.Secret:
				for _, s := range x {
					long = append(long, secretParts(s)...)
				}
			case map[string]sink.Secret:
				for _, s := range x {
					long = append(long, secretParts(s)...)
				}
			}
		})
	}
	out = append(out, slices.DeleteFunc(long, func(s string) bool { return len(s) < shortestSecret })...)
	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return out
}

// secretParts returns a secret, and its parts without a leading type such as "Bearer " or "whsec_".
func secretParts(s sink.Secret) []string {
	_, word, _ := strings.Cut(string(s), " ")
	_, key, _ := strings.Cut(string(s), "_")
	return []string{string(s), word, key}
}

// keyPassword matches the password in a database address that is not a URL.
var keyPassword = regexp.MustCompile(`password\s*=\s*'?([^'\s]+)`)

// addressSecrets returns the secrets in a sink's address, which may be several URLs or not a URL at all.
func addressSecrets(text string) (out []string) {
	for part := range strings.SplitSeq(text, ",") {
		out = append(out, urlSecrets(part)...)
	}
	if m := keyPassword.FindStringSubmatch(text); m != nil && !strings.Contains(text, "://") {
		out = append(out, m[1])
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

// RedactURL returns the URL with passwords replaced by ***. Of a text that is not a URL only the scheme
// is returned.
func RedactURL(text string) string {
	if text == "" {
		return ""
	}
	u, err := address.URL(text)
	if err != nil || u.Scheme == "" || u.Opaque != "" {
		scheme, _, ok := strings.Cut(text, "://")
		if !ok || len(scheme) > longestScheme {
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

// showPath returns the value in the form in which users write it, without secrets.
func showPath(path string, v reflect.Value) string {
	switch tagAt(path) {
	case "url":
		return RedactURL(v.String())
	case "address":
		return showAddress(v.String())
	case "all":
		names := sortedKeys(v.Interface().(map[string]string))
		for i, n := range names {
			names[i] = n + ": ***"
		}
		return "{" + strings.Join(names, ", ") + "}"
	}
	return show(v)
}

// showAddress returns the host of a sink's address. It omits the path, because a webhook's path may be as
// secret as a password.
func showAddress(text string) string {
	parts := strings.Split(text, ",")
	for i, part := range parts {
		u, err := address.URL(strings.ReplaceAll(part, "{topic}", "topic"))
		switch {
		case err != nil || u.Host == "":
			parts[i] = "***"
		case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil:
			parts[i] = u.Scheme + "://" + u.Host + "/***"
		default:
			parts[i] = u.Scheme + "://" + u.Host
		}
	}
	return strings.Join(parts, ",")
}

// tagAt returns the secret tag of the setting. A sink's url has the tag "address".
func tagAt(path string) string {
	t := reflect.TypeFor[Config]()
	if list, rest, ok := strings.Cut(path, "["); ok {
		t = blocks[list]
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
		if t = f.Type; t == reflect.TypeFor[*Sink]() && strings.HasSuffix(path, ".url") {
			return "address"
		}
	}
	return f.Tag.Get("secret")
}

func show(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Slice:
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = quoteIfNeeded(show(v.Index(i)))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case reflect.Map:
		var parts []string
		for _, name := range v.MapKeys() {
			parts = append(parts, name.String()+": "+quoteIfNeeded(show(v.MapIndex(name))))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ", ") + "}"
	}
	switch x := v.Interface().(type) {
	case Exec:
		return x.ID
	case Subscription:
		return x.Name
	case *Sink:
		return x.Kind
	}
	return fmt.Sprint(v.Interface())
}

// quoteIfNeeded quotes a text that would be misread inside a list or map.
func quoteIfNeeded(s string) string {
	if s == "" || strings.ContainsAny(s, " ,:[]{}\"'#\n\t") {
		return strconv.Quote(s)
	}
	return s
}

// Redact replaces the configuration's secrets in text.
func (l *Loaded) Redact(text string) string { return fault.Redact(text, l.Secrets()...) }
