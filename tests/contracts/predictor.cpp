// Every Predictor of the library, tried by its contract. A new policy is registered in the list.
#include "contracts/predictor.hpp"

#include "ferry/predictor/activation_matrix.hpp"
#include "ferry/predictor/activation_path.hpp"
#include "ferry/predictor/cross_layer_gate.hpp"
#include "ferry/predictor/every_expert.hpp"
#include "ferry/predictor/none.hpp"
#include "ferry/predictor/oracle.hpp"
#include "ferry/predictor/partial_hidden.hpp"
#include "ferry/predictor/stacked_gates.hpp"

using namespace ferry;
using namespace ferry::test;

TEST_CASE_TEMPLATE_INVOKE(predictor_contract, NoPrediction, CrossLayerGate, StackedGates, PartialHidden, EveryExpert,
                          ActivationPath, ActivationMatrix, Oracle);
