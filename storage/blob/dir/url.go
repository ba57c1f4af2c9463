package dir

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
)

// ParseURL reads "file:///var/lib/emitd/objects", with the optional parameter sync=false.
func ParseURL(raw string) (Config, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "file" || (u.Host != "" && u.Host != "localhost") || u.Path == "" || u.Opaque != "" {
		return Config{}, fmt.Errorf("object store address %q: want file:///directory or file:///directory?sync=false", raw)
	}
	config := Config{Path: filepath.FromSlash(u.Path)}
	for name, values := range u.Query() {
		sync, err := strconv.ParseBool(values[0])
		if name != "sync" || err != nil {
			return Config{}, fmt.Errorf("object store address %q: parameter %q: only sync is known, true or false", raw, name)
		}
		config.NoSync = !sync
	}
	return config, nil
}
