package load

import (
	"testing"
	"time"
)

func TestParseInterval(t *testing.T) {
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "1d12h": 36 * time.Hour, "0.5h": 30 * time.Minute, "10ms": 10 * time.Millisecond} {
		if got, err := ParseInterval(text); err != nil || got != want {
			t.Errorf("%s: %v, error %v", text, got, err)
		}
	}
	for _, text := range []string{"", "5", "-5m", "5 m", "h", "1.1.1h", "9999999d"} {
		if got, err := ParseInterval(text); err == nil {
			t.Errorf("%q is %v, and should be an error", text, got)
		}
	}
}

func TestParseQuantity(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "100Gi": 100 << 30, "1.5k": 1500, "2Ti": 2 << 40} {
		if got, err := ParseQuantity(text); err != nil || got != want {
			t.Errorf("%s: %d, error %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "1 Gi", "1GiB", "1e3", "9999Pi"} {
		if got, err := ParseQuantity(text); err == nil {
			t.Errorf("%q is %d, and should be an error", text, got)
		}
	}
}
