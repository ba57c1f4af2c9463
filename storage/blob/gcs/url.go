package gcs

import (
	"errors"
	"fmt"
	"strings"

	"github.com/emitd/emitd/internal/address"
)

// ParseURL reads "gs://bucket/prefix", with the optional parameter endpoint, the address of an
// emulator. Without it, emulator (the value of STORAGE_EMULATOR_HOST) is used unless it is empty;
// that may lack its scheme.
func ParseURL(raw, emulator string) (Config, error) {
	u, err := address.URL(raw)
	if err != nil || u.Scheme != "gs" || u.Host == "" || u.Opaque != "" || u.User != nil {
		return Config{}, errors.New("object store address: want gs://bucket/prefix or gs://bucket/prefix?endpoint=http://host:port")
	}
	config := Config{Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"), Endpoint: emulator}
	if emulator != "" && !strings.Contains(emulator, "://") {
		config.Endpoint = "http://" + emulator
	}
	for name, values := range u.Query() {
		if name != "endpoint" {
			return Config{}, fmt.Errorf("object store address gs://%s: unknown parameter, want endpoint", u.Hostname())
		}
		config.Endpoint = values[len(values)-1]
	}
	return config, config.validate()
}
