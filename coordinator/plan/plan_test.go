package plan

import "testing"

func TestSmoke(t *testing.T) {}
