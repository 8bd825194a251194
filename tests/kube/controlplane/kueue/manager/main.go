// Kueue's own controllers and scheduler, as they are, on Workloads: what decides who gets quota.
//
// Its webhooks are left out: they need certificates at places that only root may write to, and check what the
// definitions check as well. So are its integrations of Jobs, pods and others, which make Workloads: here the
// one that is tested makes them.
package main

import (
	"flag"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/scheduler"
	"sigs.k8s.io/kueue/pkg/scheduler/preemption/expectations"
)

func main() {
	flag.Parse() // --kubeconfig is a flag of controller-runtime
	ctrl.SetLogger(zap.New())
	if err := run(); err != nil {
		ctrl.Log.Error(err, "it ends")
		os.Exit(1)
	}
}

func run() error {
	ctx, scheme := ctrl.SetupSignalHandler(), runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, kueue.AddToScheme, configapi.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config := &configapi.Configuration{}
	scheme.Default(config)
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	if err := indexer.Setup(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	requeuer, preempted := qcache.NewRequeuer(), expectations.New()
	if err := mgr.Add(requeuer); err != nil {
		return err
	}
	cache := schdcache.New(mgr.GetClient())
	queues := qcache.NewManager(mgr.GetClient(), cache, requeuer, qcache.WithPreemptionExpectations(preempted))
	opts := core.SetupControllersOpts{PreemptionExpectations: preempted}
	if failed, err := core.SetupControllers(mgr, queues, cache, config, opts); err != nil {
		ctrl.Log.Info("cannot set up a controller", "controller", failed)
		return err
	}
	go queues.CleanUpOnContext(ctx)
	go cache.CleanUpOnContext(ctx)
	recorder := mgr.GetEventRecorder(constants.AdmissionName)
	decides := scheduler.New(queues, cache, mgr.GetClient(), recorder,
		scheduler.WithPreemptionExpectations(preempted))
	if err := mgr.Add(decides); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
