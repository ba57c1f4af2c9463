package storagetest
import "testing"
func runModel(t *testing.T, f Factory) {}
