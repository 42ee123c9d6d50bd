package plan_test

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// What a first copy is overtaken by, where it is declared what it has to be and where not.
func TestSupersededBy(t *testing.T) {
	image, established := plantest.NewImage("parrot"), plantest.NewImage("parrot")
	image.Checksum = disk.Digest{}
	for _, test := range []struct {
		image    schema.Image
		is, now  plan.Op
		overtook bool
	}{
		{image, plan.Download, plan.Sync, true},
		{image, plan.Download, plan.Repair, true},
		{image, plan.Download, plan.Restore, false},
		{established, plan.Download, plan.Sync, false},
		{established, plan.Upload, plan.Sync, true},
		{established, plan.Upload, plan.Upload, false},
	} {
		if (plan.Action{Op: test.is}).SupersededBy(test.image, plan.Action{Op: test.now}) != test.overtook {
			t.Errorf("%s by %s, declared %v: %v", test.is, test.now, test.image.Checksum, !test.overtook)
		}
	}
}
