package load

import (
	"os"
	"testing"

	"github.com/seed-26586806/backing-image-manager/schema/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.ChildMain()
	os.Exit(m.Run())
}
